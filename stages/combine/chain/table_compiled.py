"""The dynamic program of `table.fill`, compiled, for long chains.

Segments are filled in square tiles of first and last positions, so that the rows which many
segments share stay in the processor's cache, and four splits at a time. Tiles as far from the
diagonal do not need each other: threads share them. A split is tried only
at budgets where it can still win: its passes alone cost what has been found at more memory.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from stages.combine.chain.slots import Integers, Seconds, Slots, Thresholds

TILE = 16
NO_NAN = {"nnan", "nsz"}


def fill_compiled(chain: Slots) -> Seconds:
    """The table's costs, shape (segments, count + 1), equal to those of `table.fill`."""
    length = chain.length
    cost = np.empty((length * (length + 1) // 2, chain.count + 1))
    starts = range(1, length + 1, TILE)

    def fill_tile(s0: int, t0: int) -> None:
        _fill_tile(
            cost,
            chain.output,
            chain.passes,
            chain.first,
            chain.save,
            chain.extra,
            chain.alone,
            chain.enter,
            chain.skip,
            chain.full,
            chain.floor,
            s0,
            t0,
        )

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for apart in range(len(starts)):
            for _ in pool.map(fill_tile, starts[: len(starts) - apart], starts[apart:]):
                pass
    return cost


@njit("int64(int64, int64, int64)", cache=True, inline="always")
def _cell(length: int, s: int, t: int) -> int:
    return (s - 1) * length - (s - 1) * (s - 2) // 2 + t - s


@njit(
    "void(float64[::1], float64[::1], float64[::1], float64)",
    cache=True,
    fastmath=NO_NAN,
)
def _try_split(row: Seconds, head: Seconds, tail: Seconds, passed: float) -> None:
    for m in range(row.size):
        found = head[m] + tail[m] + passed
        row[m] = found if found < row[m] else row[m]


@njit(
    "void(float64[::1], float64[::1], float64[::1], float64[::1], float64[::1], "
    "float64[::1], float64[::1], float64[::1], float64[::1], float64, float64, float64, float64)",
    cache=True,
    fastmath=NO_NAN,
)
def _try_splits(
    row: Seconds,
    head0: Seconds,
    head1: Seconds,
    head2: Seconds,
    head3: Seconds,
    tail0: Seconds,
    tail1: Seconds,
    tail2: Seconds,
    tail3: Seconds,
    passed0: float,
    passed1: float,
    passed2: float,
    passed3: float,
) -> None:
    for m in range(row.size):
        found0 = head0[m] + tail0[m] + passed0
        found1 = head1[m] + tail1[m] + passed1
        found2 = head2[m] + tail2[m] + passed2
        found3 = head3[m] + tail3[m] + passed3
        found0 = found0 if found0 < found1 else found1
        found2 = found2 if found2 < found3 else found3
        found0 = found0 if found0 < found2 else found2
        row[m] = found0 if found0 < row[m] else row[m]


@njit(
    "void(float64[:,::1], int64, int64, int64, float64, int64[::1], float64[::1], int64, int64)",
    cache=True,
)
def _try_group(
    cost: Seconds,
    s: int,
    t: int,
    r: int,
    least: float,
    output: Integers,
    passes: Seconds,
    low: int,
    high: int,
) -> None:
    """Splits r .. r + 3 of segment (s, t); `least` is what the best of them takes at least."""
    length = passes.size - 1
    row = cost[_cell(length, s, t)]
    begin = low
    while begin < high:
        middle = (begin + high) // 2
        if row[middle] <= least:
            high = middle
        else:
            begin = middle + 1
    if low >= high:
        return
    head = _cell(length, s, r)
    before = passes[s - 1]
    _try_splits(
        row[low:high],
        cost[head, low:high],
        cost[head + 1, low:high],
        cost[head + 2, low:high],
        cost[head + 3, low:high],
        cost[_cell(length, r + 1, t), low - output[r] : high - output[r]],
        cost[_cell(length, r + 2, t), low - output[r + 1] : high - output[r + 1]],
        cost[_cell(length, r + 3, t), low - output[r + 2] : high - output[r + 2]],
        cost[_cell(length, r + 4, t), low - output[r + 3] : high - output[r + 3]],
        passes[r] - before,
        passes[r + 1] - before,
        passes[r + 2] - before,
        passes[r + 3] - before,
    )


@njit(
    "void(float64[:,::1], int64, int64, int64[::1], int64[::1], float64[::1], float64[::1], "
    "int32[:,::1], int64)",
    cache=True,
    fastmath=NO_NAN,
)
def _run_once(
    cost: Seconds,
    s: int,
    t: int,
    first: Integers,
    save: Integers,
    extra: Seconds,
    alone: Seconds,
    enter: Thresholds,
    high: int,
) -> None:
    """Case 1 below `high` slots: position s runs once, in one of its ways."""
    length = first.size - 2
    row = cost[_cell(length, s, t)]
    for way in range(first[s], first[s + 1]):
        if s == t:
            for m in range(enter[way, t], high):
                row[m] = min(row[m], alone[way])
            continue
        after = cost[_cell(length, s + 1, t)]
        low = max(np.int64(enter[way, t]), save[way])
        for m in range(low, high):
            found = after[m - save[way]] + extra[way]
            row[m] = found if found < row[m] else row[m]


@njit(
    "void(float64[:,::1], int64[::1], float64[::1], int64[::1], int64[::1], float64[::1], "
    "float64[::1], int32[:,::1], int32[:,::1], int32[:,::1], float64[::1], int64, int64)",
    cache=True,
    nogil=True,
)
def _fill_tile(
    cost: Seconds,
    output: Integers,
    passes: Seconds,
    first: Integers,
    save: Integers,
    extra: Seconds,
    alone: Seconds,
    enter: Thresholds,
    skip: Thresholds,
    full: Thresholds,
    floor: Seconds,
    s0: int,
    t0: int,
) -> None:
    """Segments from s0 .. s0 + TILE - 1 to t0 .. t0 + TILE - 1, after the tiles with the same first
    positions and nearer last ones, and with the same last positions and later first ones."""
    length = passes.size - 1
    s1, t1 = min(length + 1, s0 + TILE), min(length + 1, t0 + TILE)
    for s in range(s0, s1):
        for t in range(max(s, t0), t1):
            cost[_cell(length, s, t)] = np.inf
    r = s1 - 1
    while r + 4 <= t0:
        lowest = min(min(floor[r], floor[r + 1]), min(floor[r + 2], floor[r + 3]))
        for s in range(s0, s1):
            for t in range(t0, t1):
                least = passes[r] - passes[s - 1] + lowest + floor[t]
                low, high = int(skip[s, t]), int(full[s, t])
                _try_group(cost, s, t, r, least, output, passes, low, high)
        r += 4
    for t in range(t0, t1):
        for s in range(min(t, s1 - 1), s0 - 1, -1):
            low, high = int(skip[s, t]), int(full[s, t])
            for split in range(s, t):
                if low < high and not s1 - 1 <= split < r:
                    tail = cost[_cell(length, split + 1, t)]
                    _try_split(
                        cost[_cell(length, s, t), low:high],
                        cost[_cell(length, s, split), low:high],
                        tail[low - output[split] : high - output[split]],
                        passes[split] - passes[s - 1],
                    )
            _run_once(cost, s, t, first, save, extra, alone, enter, high)
            cost[_cell(length, s, t), high:] = floor[t]
