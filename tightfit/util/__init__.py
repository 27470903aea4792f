"""tightfit/util."""
