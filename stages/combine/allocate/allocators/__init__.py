"""The allocators, one file each; `stages/combine/allocate/registry.py` finds them by name."""
