"""Runs a planned module against the original model: bits, memory and time."""
