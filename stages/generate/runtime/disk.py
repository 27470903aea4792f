"""What generated packages have as `disk.py`: `stages.device.disk`, under the same name."""

from stages.device.disk import folder_of

__all__ = ["folder_of"]
