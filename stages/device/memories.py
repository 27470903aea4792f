"""Which memory is the slow one of a device."""

from __future__ import annotations

import os

import torch

from .disk import Disk
from .slow import Slow
from .streams import Host


def slow_memory(
    device: torch.device, size: int, folder: str | os.PathLike[str] | None = None
) -> Slow:
    """Bytes of the slow memory of a device: of the disk in a folder for the CPU, else the host's.

    Raises RuntimeError, in one sentence, where there is no room for them.
    """
    return Disk(size, folder) if device.type == "cpu" else Host(size, device)
