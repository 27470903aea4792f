"""In a generated package this file is that of `stages.device`."""

from stages.device.caches import register_caches

__all__ = ["register_caches"]
