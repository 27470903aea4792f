"""schemas/graph."""
