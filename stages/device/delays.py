"""For how long threads of this process stood ready while no processor ran them, as Linux counts it:
what other work on the machine takes of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TASKS = Path("/proc/self/task")

Delays = Mapping[str, int]
"""Nanoseconds by thread."""


def delays() -> Delays:
    """The delays of all threads so far; none where the system does not count them."""
    found: dict[str, int] = {}
    for thread in TASKS.iterdir() if TASKS.is_dir() else ():
        try:
            found[thread.name] = int((thread / "schedstat").read_text().split()[1])
        except (OSError, ValueError, IndexError):  # It has ended, or nothing counts.
            continue
    return found


def longest(before: Delays, after: Delays) -> float:
    """The seconds by which the thread was delayed that was so the most between two moments."""
    return (
        max((waited - before.get(thread, 0) for thread, waited in after.items()), default=0) / 1e9
    )
