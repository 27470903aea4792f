"""Groups of pointwise and normalising ops as single nodes of a graph."""
