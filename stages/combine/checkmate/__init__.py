"""Runs of a step unrolled into stages, as an integer program: of single nodes, or of clusters of
them with options."""
