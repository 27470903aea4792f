"""What generated packages have as `lane.py`: `stages.device.lane`, under the same name."""

from tightfit.stages.device.lane import Lane

__all__ = ["Lane"]
