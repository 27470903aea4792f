"""Partitions of a chain into stages with the least delay, compiled; `contiguous.py` says why."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from tightfit.stages.combine.array_types import IntArray

INFINITE_DELAY = np.int64(1) << 62
"""A delay that nothing has."""


class StageCosts(NamedTuple):
    """What stages take, in ticks and bytes: rows of a `StageOptionTable`, and by layer the
    `weights` up to it, the `buffer` of its output, and the ticks of the `cut` behind it."""

    begin: IntArray
    ticks: IntArray
    stored: IntArray
    work: IntArray
    weights: IntArray
    buffer: IntArray
    cut: IntArray


class PartitionLimits(NamedTuple):
    """Devices of so many bytes, and a period in ticks; of each `turns` batches `there` are kept."""

    devices: int
    memory: int
    period: int
    there: int
    turns: int


@njit("int64(int64, int64)", cache=True, inline="always")
def count_periods(ticks: int, period: int) -> int:
    """Periods that so many ticks reach into."""
    return -((-ticks) // period)


@njit("int64(int64, int64, int64)", cache=True, inline="always")
def add_delay(before: int, ticks: int, period: int) -> int:
    """M's `before (+) ticks`: the delay after a task of so many ticks joins its group, or begins a
    new one."""
    reached = count_periods(before, period)
    if before > 0 and count_periods(before + ticks, period) != reached:
        return reached * period + ticks
    return before + ticks


@njit("int64(int64[:, ::1])", cache=True)
def _best_stage_count(delay: IntArray) -> int:
    """The stages of the partition of all layers with the least delay, 0 where there is none."""
    best = 0
    for used in range(1, len(delay)):
        if delay[used, 0] < INFINITE_DELAY and (best == 0 or delay[used, 0] < delay[best, 0]):
            best = used
    return best


@njit(cache=True)
def label_partition(costs: StageCosts, limits: PartitionLimits) -> IntArray:
    """First layers of stages and their rows of the menu, shape (stages, 2), in order; empty where
    no partition fits. Of a stage the fastest row that fits is the best: it delays the least."""
    begin, ticks, cut = costs.begin, costs.ticks, costs.cut
    devices, memory, period, there, turns = limits
    length = cut.size - 1
    delay = np.full((devices + 1, length + 1), INFINITE_DELAY)
    start = np.zeros((devices + 1, length + 1), np.int64)
    taken = np.zeros((devices + 1, length + 1), np.int64)
    delay[0, length] = 0
    for used in range(devices):
        for last in range(length, 0, -1):
            before = delay[used, last]
            if before == INFINITE_DELAY:
                continue
            for first in range(last, 0, -1):
                fixed = costs.weights[last] - costs.weights[first - 1]
                fixed += costs.buffer[last] + costs.buffer[first - 1]
                if ticks[begin[first, last]] > period:
                    break
                if fixed > memory or cut[first - 1] > period:
                    continue
                for row in range(begin[first, last], begin[first, last + 1]):
                    if ticks[row] > period:
                        break
                    after = add_delay(before, ticks[row], period)
                    group = count_periods(after, period) or 1
                    flying = group // turns * there + min(group % turns, there)
                    if fixed + flying * costs.stored[row] + costs.work[row] <= memory:
                        after = add_delay(after, cut[first - 1], period)
                        if after < delay[used + 1, first - 1]:
                            delay[used + 1, first - 1] = after
                            start[used + 1, first - 1] = last
                            taken[used + 1, first - 1] = row
                        break
    best = _best_stage_count(delay)
    found = np.empty((best, 2), np.int64)
    layer = np.int64(0)
    for number in range(best):
        found[number, 0], found[number, 1] = layer + 1, taken[best - number, layer]
        layer = start[best - number, layer]
    return found
