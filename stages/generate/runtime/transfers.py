"""What generated packages have as `transfers.py`: `stages.device.transfers`, by the same name."""

from tightfit.stages.device.transfers import Moving, Sending

__all__ = ["Moving", "Sending"]
