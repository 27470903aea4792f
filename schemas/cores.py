"""How many threads there is room for."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0))
