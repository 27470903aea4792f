"""What generated packages have as `slow.py`: `stages.device.slow`, under the same name."""

from stages.device.slow import Slow, Ticket

__all__ = ["Slow", "Ticket"]
