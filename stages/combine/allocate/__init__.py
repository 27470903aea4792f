"""Pipelines: layers of a chain are given to devices, and a pattern says when each runs."""
