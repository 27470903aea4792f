"""Looks for the least number at which something is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def least_found(low: int, high: int, found: T, look: Callable[[int], T | None]) -> tuple[int, T]:
    """The least number above `low` and up to `high` at which `look` finds something, with that, by
    halving; `found` is what it finds at `high`. What is found at a number is found at the next."""
    while high - low > 1:
        middle = (low + high) // 2
        looked = look(middle)
        if looked is None:
            low = middle
        else:
            high, found = middle, looked
    return high, found
