"""Contiguous allocations: the best partition of a chain into at most P stages, at a period.

A program over the last layer that is not yet in a stage and the devices that are left keeps the
least delay V between the end of a forward and the start of the backward of the same batch. Less
delay never hurts: it means fewer batches in flight, here and further up (M 4.2.2). So it is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tightfit.stages.combine.allocate.allocation import Allocation, Stage, inner_of
from tightfit.stages.combine.allocate.halving import least_found
from tightfit.stages.combine.allocate.layers import NO_LIMIT, Layers
from tightfit.stages.combine.allocate.partitions import PartitionLimits, StageCosts, label_partition


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
    menu = layers.menu or layers.everything
    costs = StageCosts(
        *(menu.begin, menu.ticks, menu.stored, menu.work),
        *(layers.weights, layers.buffer, layers.cut),
    )
    found = label_partition(costs, PartitionLimits(devices, memory, period, kept.kept, kept.turns))
    if not len(found):
        return None
    starts = found[:, 0].tolist()
    ends = [*(first - 1 for first in starts[1:]), layers.count]
    stages = tuple(
        Stage(first, last, device)
        for device, (first, last) in enumerate(zip(starts, ends, strict=True))
    )
    return Allocation(layers, stages, names, inner_of(layers, stages, found[:, 1].tolist()))


def least_feasible(
    layers: Layers, names: tuple[str, ...], memory: int, kept: Kept = ALL
) -> tuple[int, Allocation] | None:
    """The least period in ticks that any contiguous allocation fits at, with one that does; None
    where none fits at any. A longer period never needs more memory."""
    high = max(layers.longest, 1)
    found = partition(layers, names, memory, high, kept)
    if found is None:
        return None
    low = max(math.floor(layers.least_period(len(names))), 1) - 1
    return least_found(
        low, high, found, lambda ticks: partition(layers, names, memory, ticks, kept)
    )


def least_memory(layers: Layers, names: tuple[str, ...]) -> int:
    """The bytes of each device with which a contiguous allocation fits at some period, the least
    of all."""
    longest = max(layers.longest, 1)
    whole: Allocation | None = None
    most = layers.memory(1, layers.count, 1)
    return least_found(-1, most, whole, lambda memory: partition(layers, names, memory, longest))[0]


def least_peak_at(
    layers: Layers, names: tuple[str, ...], memory: int, period: int, kept: Kept = ALL
) -> Allocation | None:
    """The contiguous allocation whose fullest device has the fewest bytes with 1F1B*(period), None
    where it has more than `memory`."""
    found = partition(layers, names, memory, period, kept)
    if found is None:
        return None
    most = min(memory, NO_LIMIT)
    return least_found(-1, most, found, lambda each: partition(layers, names, each, period, kept))[
        1
    ]
