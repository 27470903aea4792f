"""What generated packages have as `states.py`: `stages.device.states`, under the same name."""

from tightfit.stages.device.states import STATES

__all__ = ["STATES"]
