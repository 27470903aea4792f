"""What generated packages have as `asked.py`: `stages.device.asked`, under the same name."""

from tightfit.stages.device.asked import FACTS

__all__ = ["FACTS"]
