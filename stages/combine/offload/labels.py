"""Sets of states of which only the best are kept.

A state is a row of numbers, each the better the smaller. One that another is nowhere worse than is
dropped. Where there are more than `MOST`, the memory that they say is cut into ever larger cells,
of which the fastest state each stays: nothing is rounded, so that what is found holds at true
sizes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tightfit.stages.combine.vectors import Floats, Integers

PAIRS = 600
"""States that are compared each with each."""
MOST = 4000
"""States that are kept."""
FINEST = 512
"""Cells at first, along each number."""


def best_of(seconds: Floats, others: list[Floats], most: int = MOST) -> tuple[Integers, bool]:
    """The indices of the states to keep, in order, and whether all that were dropped are worse
    than one that is kept."""
    rows = np.column_stack([seconds, *others])
    order = np.lexsort(rows.T[::-1])
    rows = rows[order]
    fresh = np.ones(len(rows), dtype=bool)
    fresh[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    rows, order = rows[fresh], order[fresh]
    if len(rows) <= PAIRS:
        keep = _undominated(rows)
        return np.sort(order[keep]), True
    keep = _staircase(rows)
    rows, order = rows[keep], order[keep]
    cells = FINEST
    while len(rows) > most:
        low, high = rows[:, 1:].min(axis=0), rows[:, 1:].max(axis=0)
        keys = np.ceil((rows[:, 1:] - low) * (cells / np.maximum(high - low, 1e-300)))
        _, first = np.unique(keys, axis=0, return_index=True)
        if len(first) <= most:
            return np.sort(order[first]), False
        cells = max(1, int(cells * 0.8))
    return np.sort(order), True


def _undominated(rows: Floats) -> npt.NDArray[np.bool_]:
    """Which of different rows no other is nowhere worse than."""
    better = np.asarray((rows[:, None, :] <= rows[None, :, :]).all(axis=2))
    np.fill_diagonal(better, False)
    return ~np.asarray(better.any(axis=0))


def _staircase(rows: Floats) -> npt.NDArray[np.bool_]:
    """Drops rows that one of the fastest few is nowhere worse than."""
    keep = np.ones(len(rows), dtype=bool)
    for index in range(min(PAIRS, len(rows))):
        if keep[index]:
            worse = (rows[index] <= rows).all(axis=1)
            worse[index] = False
            keep &= ~worse
    return keep
