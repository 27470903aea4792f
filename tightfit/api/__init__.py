"""tightfit/api."""
