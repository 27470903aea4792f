"""Captures the joint forward and backward of a model as a `tightfit.graph/4`."""
