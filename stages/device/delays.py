"""For how long threads of this process ran, and stood ready while no processor ran them, as Linux
counts it: what other work on the machine takes of a measurement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

TASKS = Path("/proc/self/task")

Delays = Mapping[str, tuple[int, int]]
"""Nanoseconds by thread: for which it ran, and for which it stood ready."""


def delays() -> Delays:
    """The delays of all threads so far; none where the system does not count them."""
    found: dict[str, tuple[int, int]] = {}
    # Asked for around each call that is timed: files are read in the way that takes the least.
    for thread in os.listdir(TASKS) if TASKS.is_dir() else ():  # noqa: PTH208
        try:
            file = os.open(f"{TASKS}/{thread}/schedstat", os.O_RDONLY)
            try:
                ran, waited = os.read(file, 128).split()[:2]
            finally:
                os.close(file)
            found[thread] = int(ran), int(waited)
        except (OSError, ValueError):  # It has ended, or nothing counts.
            continue
    return found


def longest(before: Delays, after: Delays) -> tuple[float, float]:
    """The seconds for which that thread ran which did so the most between two moments, and those by
    which that one was delayed which was so the most."""
    known = [(own, before.get(thread, (0, 0))) for thread, own in after.items()]
    ran = max((own[0] - first[0] for own, first in known), default=0)
    waited = max((own[1] - first[1] for own, first in known), default=0)
    return ran / 1e9, waited / 1e9
