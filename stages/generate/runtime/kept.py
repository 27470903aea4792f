"""What generated packages have as `kept.py`: `stages.device.kept`, under the same name."""

from tightfit.stages.device.kept import WRAPPER, kept_by, tensors_in

__all__ = ["WRAPPER", "kept_by", "tensors_in"]
