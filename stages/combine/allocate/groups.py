"""1F1B*(T): the pattern of a contiguous allocation with the fewest batches in flight (S 5.2, M
4.1), and k-periodic ones made of it (S 5.2.2)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from tightfit.stages.combine.allocate.allocation import Allocation, Timing


def groups_of(loads: Sequence[int], period: int) -> list[int]:
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


def one_f_one_b(allocation: Allocation, period: int, kept: int = 1, turns: int = 1) -> Timing:
    """The timing of 1F1B*(period): forwards one after the other, and within a group backwards,
    too; with `kept` of `turns` batches."""
    tasks = allocation.tasks
    groups = groups_of([task.load for task in tasks], period)
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
    return Timing(period, forward[:-1], backward, kept, turns)


def in_flight(group: int, kept: int, turns: int) -> int:
    """The batches in flight of a group where `kept` of `turns` batches are there, the last ones of
    each turn left out: of any `group` batches in a row."""
    whole, rest = divmod(group, turns)
    return whole * kept + min(rest, kept)


def fits_at(
    allocation: Allocation, memory: int, period: int, kept: int = 1, turns: int = 1
) -> bool:
    """Whether 1F1B*(period) fits each device of a contiguous allocation into `memory` bytes."""
    tasks = allocation.tasks
    loads = [task.load for task in tasks]
    if max(loads) > period:
        return False
    groups = groups_of(loads, period)
    own = [group for task, group in zip(tasks, groups, strict=True) if not task.transfer]
    return all(
        allocation.layers.memory(stage.first, stage.last, in_flight(group, kept, turns)) <= memory
        for stage, group in zip(allocation.stages, own, strict=True)
    )


def least_period(allocation: Allocation, memory: int) -> int | None:
    """The least ticks of a period at which 1F1B* fits each device of a contiguous allocation into
    `memory` bytes, None where none does. Only sums of tasks in a row can be it."""
    loads = [task.load for task in allocation.tasks]
    ends = range(1, len(loads) + 1)
    sums = {sum(loads[begin:end]) for end in ends for begin in range(end)}
    candidates = sorted(total for total in sums if total >= max(*loads, 1)) or [1]
    if not fits_at(allocation, memory, candidates[-1]):
        return None
    shorter = candidates[:-1]
    fits = partial(fits_at, allocation, memory)
    return candidates[bisect_left(shorter, True, key=fits)]
