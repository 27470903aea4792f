"""Combines the options of blocks into plans of whole steps, under a budget."""
