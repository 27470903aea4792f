"""What generated packages have as `home.py`: `stages.device.home`, under the same name."""

from tightfit.stages.device.home import Home

__all__ = ["Home"]
