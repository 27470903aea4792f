"""What generated packages have as `caches.py`: `stages.device.caches`, under the same name."""

from tightfit.stages.device.caches import register_caches

__all__ = ["register_caches"]
