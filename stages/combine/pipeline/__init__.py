"""Splits a training step over the ranks of a pipeline."""
