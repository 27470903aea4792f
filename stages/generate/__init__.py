"""Writes a planned training step as a Python package that needs only PyTorch."""
