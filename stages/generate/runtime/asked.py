"""What generated packages have as `asked.py`: `stages.device.asked`, under the same name."""

from stages.device.asked import FACTS

__all__ = ["FACTS"]
