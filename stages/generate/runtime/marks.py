"""What generated packages have as `marks.py`: `stages.device.marks`, under the same name."""

from tightfit.stages.device.marks import ended_by, ended_early, marks_of

__all__ = ["ended_by", "ended_early", "marks_of"]
