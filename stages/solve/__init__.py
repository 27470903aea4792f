"""Finds the ways to run each distinct block: options from ILPs and by hand."""
