"""What generated packages have as `opened.py`: `stages.device.opened`, under the same name."""

from tightfit.stages.device.opened import open_library

__all__ = ["open_library"]
