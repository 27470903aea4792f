"""What generated packages have as `written.py`: `stages.device.written`, under the same name."""

from tightfit.stages.device.written import agree, same_plain, say

__all__ = ["agree", "same_plain", "say"]
