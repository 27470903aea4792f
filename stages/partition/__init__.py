"""Cuts a training step into a sequence of blocks and recognizes the equal ones."""
