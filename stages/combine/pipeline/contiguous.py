"""Contiguous allocations: the best partition of a chain into at most P stages, at a period.

A program over the last layer that is not yet in a stage and the devices that are left keeps the
least delay V between the end of a forward and the start of the backward of the same batch. Less
delay never hurts: it means fewer batches in flight, here and further up (M 4.2.2). So it is exact.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeVar

from tightfit.stages.combine.pipeline.allocation import (
    Allocation,
    PatternTiming,
    Stage,
    select_stage_options,
)
from tightfit.stages.combine.pipeline.contiguous_dp import (
    PartitionLimits,
    StageCosts,
    label_partition,
)
from tightfit.stages.combine.pipeline.layers import PipelineLayers

T = TypeVar("T")


def bisect_min(low: int, high: int, found: T, look: Callable[[int], T | None]) -> tuple[int, T]:
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


@dataclass(frozen=True)
class BatchFraction:
    """Of each `turns` batches `kept` are there (k-periodic patterns); all, where both are 1."""

    kept: int = 1
    turns: int = 1


ALL_BATCHES = BatchFraction()


def find_partition(
    layers: PipelineLayers,
    names: tuple[str, ...],
    memory: int,
    period: int,
    kept: BatchFraction = ALL_BATCHES,
) -> Allocation | None:
    """A contiguous allocation that 1F1B*(period) fits into `memory` bytes a device, None where
    there is none. `period` is in ticks."""
    devices = min(len(names), layers.count)
    menu = layers.stage_options or layers.keep_all_options
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
    return Allocation(
        layers, stages, names, select_stage_options(layers, stages, found[:, 1].tolist())
    )


def min_period_partition(
    layers: PipelineLayers, names: tuple[str, ...], memory: int, kept: BatchFraction = ALL_BATCHES
) -> tuple[int, Allocation] | None:
    """The least period in ticks that any contiguous allocation fits at, with one that does; None
    where none fits at any. A longer period never needs more memory."""
    high = max(layers.max_ticks, 1)
    found = find_partition(layers, names, memory, high, kept)
    if found is None:
        return None
    low = max(math.floor(layers.least_period(len(names))), 1) - 1
    return bisect_min(
        low, high, found, lambda ticks: find_partition(layers, names, memory, ticks, kept)
    )


def min_device_memory(layers: PipelineLayers, names: tuple[str, ...]) -> int:
    """The bytes of each device with which a contiguous allocation fits at some period, the least
    of all."""
    longest = max(layers.max_ticks, 1)
    whole: Allocation | None = None
    most = layers.memory(1, layers.count, 1)
    return bisect_min(
        -1, most, whole, lambda memory: find_partition(layers, names, memory, longest)
    )[0]


def assign_groups(loads: Sequence[int], period: int) -> list[int]:
    """The group of each task of a chain, from the last one, which is in group 1: tasks of a group
    take no more than a period together. A group's number is that of its batches in flight; no
    1-periodic pattern has fewer (S Theorem 15). `period` is at least the largest load."""
    found: list[int] = []
    group, taken = 1, 0
    for load in reversed(loads):
        taken += load
        if taken > period:
            group, taken = group + 1, load
        found.append(group)
    return found[::-1]


def schedule_one_f_one_b(
    allocation: Allocation, period: int, kept: int = 1, turns: int = 1
) -> PatternTiming:
    """The timing of 1F1B*(period): forwards one after the other, and within a group backwards,
    too; with `kept` of `turns` batches."""
    tasks = allocation.tasks
    groups = assign_groups([task.load for task in tasks], period)
    forward = [0, *accumulate(task.forward for task in tasks)]
    backward = [0] * len(tasks)
    for number in range(len(tasks) - 1, -1, -1):
        task = tasks[number]
        last_of_group = number + 1 == len(tasks) or groups[number + 1] != groups[number]
        if last_of_group:
            backward[number] = forward[number + 1] + (groups[number] - 1) * period
        else:
            backward[number] = backward[number + 1] + tasks[number + 1].backward
        assert task.load <= period
    return PatternTiming(period, forward[:-1], backward, kept, turns)


def batches_in_flight(group: int, kept: int, turns: int) -> int:
    """The batches in flight of a group where `kept` of `turns` batches are there, the last ones of
    each turn left out: of any `group` batches in a row."""
    whole, rest = divmod(group, turns)
    return whole * kept + min(rest, kept)


def fits_memory(
    allocation: Allocation, memory: int, period: int, kept: int = 1, turns: int = 1
) -> bool:
    """Whether 1F1B*(period) fits each device of a contiguous allocation into `memory` bytes."""
    tasks = allocation.tasks
    loads = [task.load for task in tasks]
    if max(loads) > period:
        return False
    groups = assign_groups(loads, period)
    own = [group for task, group in zip(tasks, groups, strict=True) if not task.transfer]
    return all(
        allocation.layers.memory(stage.first, stage.last, batches_in_flight(group, kept, turns))
        <= memory
        for stage, group in zip(allocation.stages, own, strict=True)
    )


def min_one_f_one_b_period(allocation: Allocation, memory: int) -> int | None:
    """The least ticks of a period at which 1F1B* fits each device of a contiguous allocation into
    `memory` bytes, None where none does. Only sums of tasks in a row can be it."""
    loads = [task.load for task in allocation.tasks]
    ends = range(1, len(loads) + 1)
    sums = {sum(loads[begin:end]) for end in ends for begin in range(end)}
    candidates = sorted(total for total in sums if total >= max(*loads, 1)) or [1]
    if not fits_memory(allocation, memory, candidates[-1]):
        return None
    shorter = candidates[:-1]
    fits = partial(fits_memory, allocation, memory)
    return candidates[bisect_left(shorter, True, key=fits)]
