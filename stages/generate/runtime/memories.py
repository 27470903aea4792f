"""What generated packages have as `memories.py`: `stages.device.memories`, under the same name."""

from stages.device.memories import slow_memory

__all__ = ["slow_memory"]
