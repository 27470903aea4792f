"""Cuts a training step into a sequence of blocks and recognises the equal ones."""
