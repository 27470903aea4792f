"""Groups of pointwise and normalizing ops as single nodes of a graph."""
