"""Checks what runs left on disk, and tells how each file was made."""
