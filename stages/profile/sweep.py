"""Leaves the caches between two timed calls as a training step does: half full of other data.

A call that is repeated at once finds its operands in the cache, in a step much else has been
touched since they were made. The machine this was tuned on has 2 cores and 32 MiB of last-level
cache. The kinds of element-wise ops and reductions of GPT-2 took 0.3 to 0.9 of their time in a real
step when repeated at once. After touching a whole cache of other memory they took 1.0 to 2.3, after
touching half of it 0.7 to 1.7, mostly 0.8 to 1.2. Matrix products hardly change.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

MOST = 32 << 20
"""The most bytes to touch: where caches are huge, sweeping costs more than it tells."""


def make_sweep(device: torch.device, room: int) -> Callable[[], None] | None:
    """What overwrites half of the last-level cache, with at most `room` bytes of memory.

    None where there is no room.
    """
    size = min(cache_bytes(device) // 2, MOST, room)
    if size < 8:
        return None
    buffer = torch.zeros(size // 8, dtype=torch.int64, device=device)

    def sweep() -> None:
        buffer.neg_()

    return sweep


def cache_bytes(device: torch.device) -> int:
    """The size of the last-level cache; 32 MiB where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    for name in ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        if name in os.sysconf_names and os.sysconf(name) > 0:
            return os.sysconf(name)
    return 32 << 20
