"""The dynamic program of `table.fill`, compiled, for long chains.

Segments are filled in square tiles of first and last positions, so that the rows which many
segments share stay in the processor's cache, and four splits at a time. Tiles as far from the
diagonal do not need each other: threads share them. A split is tried only
at budgets where it can still win: its passes alone cost what has been found at more memory.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numba import njit

from tightfit.stages.combine.array_types import IntArray, SecondsArray
from tightfit.stages.combine.chain.discretize import DiscretizedChain, SlotThresholds
from tightfit.util.processes import usable_cores

TILE = 16
NO_NAN = {"nnan", "nsz"}


class _ChainArrays(NamedTuple):
    """The arrays of `Slots`, which says what they are."""

    output: IntArray
    passes: SecondsArray
    first: IntArray
    save: IntArray
    extra: SecondsArray
    alone: SecondsArray
    enter: SlotThresholds
    skip: SlotThresholds
    full: SlotThresholds
    floor: SecondsArray


def fill_chain_table_compiled(slots: DiscretizedChain) -> SecondsArray:
    """The table's costs, shape (segments, count + 1), equal to those of `table.fill`."""
    length = slots.length
    chain = _ChainArrays(*(getattr(slots, name) for name in _ChainArrays._fields))
    cost = np.empty((length * (length + 1) // 2, slots.count + 1))
    starts = range(1, length + 1, TILE)

    def fill_tile(s0: int, t0: int) -> None:
        _fill_tile(cost, chain, s0, t0)

    with ThreadPoolExecutor(usable_cores()) as pool:
        for apart in range(len(starts)):
            for _ in pool.map(fill_tile, starts[: len(starts) - apart], starts[apart:]):
                pass
    return cost


@njit("int64(int64, int64, int64)", cache=True, inline="always")
def _segment_row(length: int, s: int, t: int) -> int:
    return (s - 1) * length - (s - 1) * (s - 2) // 2 + t - s


@njit(
    "void(float64[::1], float64[::1], float64[::1], float64)",
    cache=True,
    fastmath=NO_NAN,
)
def _try_split(row: SecondsArray, head: SecondsArray, tail: SecondsArray, passed: float) -> None:
    for m in range(row.size):
        found = head[m] + tail[m] + passed
        row[m] = found if found < row[m] else row[m]


@njit(cache=True, fastmath=NO_NAN)
def _try_splits(
    row: SecondsArray,
    heads: tuple[SecondsArray, SecondsArray, SecondsArray, SecondsArray],
    tails: tuple[SecondsArray, SecondsArray, SecondsArray, SecondsArray],
    passed: tuple[float, float, float, float],
) -> None:
    for m in range(row.size):
        found0 = heads[0][m] + tails[0][m] + passed[0]
        found1 = heads[1][m] + tails[1][m] + passed[1]
        found2 = heads[2][m] + tails[2][m] + passed[2]
        found3 = heads[3][m] + tails[3][m] + passed[3]
        found0 = found0 if found0 < found1 else found1
        found2 = found2 if found2 < found3 else found3
        found0 = found0 if found0 < found2 else found2
        row[m] = found0 if found0 < row[m] else row[m]


@njit(cache=True, inline="always")
def _try_group(
    cost: SecondsArray, chain: _ChainArrays, s: int, t: int, r: int, lowest: float
) -> None:
    """Splits r .. r + 3 of segment (s, t); their first parts take `lowest` at least."""
    output, passes = chain.output, chain.passes
    length = passes.size - 1
    least = passes[r] - passes[s - 1] + lowest + chain.floor[t]
    low, high = int(chain.skip[s, t]), int(chain.full[s, t])
    row = cost[_segment_row(length, s, t)]
    begin, end = low, high
    while begin < end:
        middle = (begin + end) // 2
        if row[middle] <= least:
            end = middle
        else:
            begin = middle + 1
    if low >= end:
        return
    head = _segment_row(length, s, r)
    before = passes[s - 1]
    _try_splits(
        row[low:end],
        (
            cost[head, low:end],
            cost[head + 1, low:end],
            cost[head + 2, low:end],
            cost[head + 3, low:end],
        ),
        (
            cost[_segment_row(length, r + 1, t), low - output[r] : end - output[r]],
            cost[_segment_row(length, r + 2, t), low - output[r + 1] : end - output[r + 1]],
            cost[_segment_row(length, r + 3, t), low - output[r + 2] : end - output[r + 2]],
            cost[_segment_row(length, r + 4, t), low - output[r + 3] : end - output[r + 3]],
        ),
        (
            passes[r] - before,
            passes[r + 1] - before,
            passes[r + 2] - before,
            passes[r + 3] - before,
        ),
    )


@njit(cache=True, fastmath=NO_NAN)
def _run_once(cost: SecondsArray, chain: _ChainArrays, s: int, t: int) -> None:
    """Case 1 below `full` slots: position s runs once, in one of its ways."""
    length, high = chain.passes.size - 1, int(chain.full[s, t])
    save, enter = chain.save, chain.enter
    row = cost[_segment_row(length, s, t)]
    for way in range(chain.first[s], chain.first[s + 1]):
        if s == t:
            for m in range(enter[way, t], high):
                row[m] = min(row[m], chain.alone[way])
            continue
        after, extra = cost[_segment_row(length, s + 1, t)], chain.extra[way]
        low = max(np.int64(enter[way, t]), save[way])
        for m in range(low, high):
            found = after[m - save[way]] + extra
            row[m] = found if found < row[m] else row[m]


@njit(cache=True, nogil=True)
def _fill_tile(cost: SecondsArray, chain: _ChainArrays, s0: int, t0: int) -> None:
    """Segments from s0 .. s0 + TILE - 1 to t0 .. t0 + TILE - 1, after the tiles with the same first
    positions and nearer last ones, and with the same last positions and later first ones."""
    output, passes, floor = chain.output, chain.passes, chain.floor
    length = passes.size - 1
    s1, t1 = min(length + 1, s0 + TILE), min(length + 1, t0 + TILE)
    for s in range(s0, s1):
        for t in range(max(s, t0), t1):
            cost[_segment_row(length, s, t)] = np.inf
    r = s1 - 1
    while r + 4 <= t0:
        lowest = min(min(floor[r], floor[r + 1]), min(floor[r + 2], floor[r + 3]))
        for s in range(s0, s1):
            for t in range(t0, t1):
                _try_group(cost, chain, s, t, r, lowest)
        r += 4
    for t in range(t0, t1):
        for s in range(min(t, s1 - 1), s0 - 1, -1):
            low, high = int(chain.skip[s, t]), int(chain.full[s, t])
            for split in range(s, t):
                if low < high and not s1 - 1 <= split < r:
                    tail = cost[_segment_row(length, split + 1, t)]
                    _try_split(
                        cost[_segment_row(length, s, t), low:high],
                        cost[_segment_row(length, s, split), low:high],
                        tail[low - output[split] : high - output[split]],
                        passes[split] - passes[s - 1],
                    )
            _run_once(cost, chain, s, t)
            cost[_segment_row(length, s, t), high:] = floor[t]
