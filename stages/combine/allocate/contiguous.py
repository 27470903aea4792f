"""Contiguous allocations: the best partition of a chain into at most P stages, at a period.

A program over the last layer that is not yet in a stage and the devices that are left keeps the
least delay V between the end of a forward and the start of the backward of the same batch. Less
delay never hurts: it means fewer batches in flight, here and further up (M 4.2.2). So it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from stages.combine.allocate.allocation import Allocation, Stage
from stages.combine.allocate.layers import NO_LIMIT, Integers, Layers


@dataclass(frozen=True)
class Kept:
    """Of each `turns` batches `kept` are there (k-periodic patterns); all, where both are 1."""

    kept: int = 1
    turns: int = 1


ALL = Kept()


def partition(
    layers: Layers, names: tuple[str, ...], memory: int, period: int, kept: Kept = ALL
) -> Allocation | None:
    """A contiguous allocation that 1F1B*(period) fits into `memory` bytes a device, None where
    there is none. `period` is in ticks."""
    devices = min(len(names), layers.count)
    starts = _partition(
        layers.load, layers.weights, layers.kept, layers.work, layers.buffer, layers.cut,
        devices, memory, period, kept.kept, kept.turns,
    )  # fmt: skip
    if not len(starts):
        return None
    ends = [*(int(first) - 1 for first in starts[1:]), layers.count]
    stages = [
        Stage(int(first), last, device)
        for device, (first, last) in enumerate(zip(starts, ends, strict=True))
    ]
    return Allocation(layers, tuple(stages), names)


def least_feasible(
    layers: Layers, names: tuple[str, ...], memory: int, kept: Kept = ALL
) -> tuple[int, Allocation] | None:
    """The least period in ticks that any contiguous allocation fits at, with one that does; None
    where none fits at any. A longer period never needs more memory."""
    high = max(layers.all_ticks, 1)
    found = partition(layers, names, memory, high, kept)
    if found is None:
        return None
    low = max(int(layers.load[-1]) // len(names), int(np.diff(layers.load).max()), 1) - 1
    while high - low > 1:
        middle = (low + high) // 2
        tried = partition(layers, names, memory, middle, kept)
        if tried is None:
            low = middle
        else:
            high, found = middle, tried
    return high, found


def least_memory(layers: Layers, names: tuple[str, ...]) -> int:
    """The bytes of each device with which a contiguous allocation fits at some period, the least
    of all."""
    longest = max(layers.all_ticks, 1)
    low, high = -1, layers.memory(1, layers.count, 1)
    while high - low > 1:
        middle = (low + high) // 2
        if partition(layers, names, middle, longest) is None:
            low = middle
        else:
            high = middle
    return high


def least_peak_at(
    layers: Layers, names: tuple[str, ...], memory: int, period: int, kept: Kept = ALL
) -> Allocation | None:
    """The contiguous allocation whose fullest device has the fewest bytes with 1F1B*(period), None
    where it has more than `memory`."""
    found = partition(layers, names, memory, period, kept)
    if found is None:
        return None
    low, high = -1, min(memory, NO_LIMIT)
    while high - low > 1:
        middle = (low + high) // 2
        tried = partition(layers, names, middle, period, kept)
        if tried is None:
            low = middle
        else:
            high, found = middle, tried
    return found


@njit("int64(int64, int64)", cache=True, inline="always")
def periods(ticks: int, period: int) -> int:
    """Periods that so many ticks reach into."""
    return -((-ticks) // period)


@njit("int64(int64, int64, int64)", cache=True, inline="always")
def delayed(before: int, ticks: int, period: int) -> int:
    """M's `before (+) ticks`: the delay after a task of so many ticks joins its group, or begins a
    new one."""
    reached = periods(before, period)
    if before > 0 and periods(before + ticks, period) != reached:
        return reached * period + ticks
    return before + ticks


@njit(
    "int64[::1](int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, "
    "int64, int64, int64, int64)",
    cache=True,
)
def _partition(
    load: Integers,
    weights: Integers,
    kept: Integers,
    work: Integers,
    buffer: Integers,
    cut: Integers,
    devices: int,
    memory: int,
    period: int,
    there: int,
    turns: int,
) -> Integers:
    """First layers of stages, in order; empty where no partition fits."""
    length = load.size - 1
    never = np.int64(1) << 62
    delay = np.full((devices + 1, length + 1), never)
    start = np.zeros((devices + 1, length + 1), np.int64)
    delay[0, length] = 0
    for used in range(devices):
        for last in range(length, 0, -1):
            before = delay[used, last]
            if before == never:
                continue
            most_work = np.int64(0)
            for first in range(last, 0, -1):
                ticks = load[last] - load[first - 1]
                if ticks > period:
                    break
                most_work = max(most_work, work[first])
                after = delayed(before, ticks, period)
                group = periods(after, period) or 1
                flying = group // turns * there + min(group % turns, there)
                own = weights[last] - weights[first - 1] + most_work
                own += flying * (kept[last] - kept[first - 1]) + buffer[last]
                if own > memory:
                    break
                if own + buffer[first - 1] > memory or cut[first - 1] > period:
                    continue
                after = delayed(after, cut[first - 1], period)
                if after < delay[used + 1, first - 1]:
                    delay[used + 1, first - 1] = after
                    start[used + 1, first - 1] = last
    best = 0
    for used in range(1, devices + 1):
        if delay[used, 0] < never and (best == 0 or delay[used, 0] < delay[best, 0]):
            best = used
    starts = np.empty(best, np.int64)
    layer = np.int64(0)
    for number in range(best):
        starts[number] = layer + 1
        layer = start[best - number, layer]
    return starts
