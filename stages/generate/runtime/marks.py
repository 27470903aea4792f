"""What generated packages have as `marks.py`: `stages.device.marks`, under the same name."""

from stages.device.marks import ended_early, marks_of

__all__ = ["ended_early", "marks_of"]
