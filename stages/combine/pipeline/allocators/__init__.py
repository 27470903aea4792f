"""The allocators, one file each; `stages/combine/pipeline/allocator.py` finds them by name."""
