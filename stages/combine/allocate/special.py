"""MadPipe's program: allocations of one stage a device but for a special one, which may have
several (M 4.2, S 7.1).

Stages are made from the end of the chain. A label is such a beginning: the load and the memory of
the special device so far, and the delay V between the end of the last forward that is left and
the start of its backward. A label that another equals or betters in all is dropped. Where more
labels come than there is place for, the rest is dropped, too: then the program is a heuristic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from stages.combine.allocate.allocation import Allocation, Stage
from stages.combine.allocate.contiguous import delayed, periods
from stages.combine.allocate.layers import Integers, Layers

LOADS, MEMORIES, DEPTH = 32, 8, 6
"""Places for labels: by the load and memory of the special device, and in each such place."""
ROUNDS = 14
"""Periods that are tried for a long chain."""
SHORT = 24
"""Layers up to which periods are tried until none is left between two."""


@dataclass(frozen=True)
class Rules:
    """How memory and links are counted.

    `printed` does as M prints: every two stages meet over a link, a link carries the largest of its
    cuts, the special device stores one batch less for each stage than fly, and where no other
    device is left it takes all in one stage. Else neighbours on the special device meet in its
    memory, the cuts of a link add up, and the special device stores for each stage as many batches
    as it must at the moment when its last one does.
    """

    printed: bool = False


SOUND, PRINTED = Rules(), Rules(printed=True)


def allocate(
    layers: Layers,
    names: tuple[str, ...],
    memory: int,
    target: int,
    most: int,
    rules: Rules = SOUND,
) -> Allocation | None:
    """An allocation with loads of at most `most` ticks that fits `memory` bytes a device with as
    many batches in flight as a period of `target` ticks takes; None where none was found. The
    special device is the last one."""
    normal = len(names) - 1
    found = _label_stages(
        layers.load, layers.weights, layers.kept, layers.work, layers.buffer, layers.cut,
        normal, memory, target, most, rules.printed,
    )  # fmt: skip
    if not len(found):
        return None
    stages, device, first = [], 0, 1
    for last, special in found:
        number = normal if special else device
        device += 0 if special else 1
        stages.append(Stage(first, int(last), number))
        first = int(last) + 1
    return Allocation(layers, tuple(stages), names)


def least_load(
    layers: Layers, names: tuple[str, ...], memory: int, target: int, rules: Rules = SOUND
) -> tuple[int, Allocation] | None:
    """MadPipe-DP(target): the least load in ticks of an allocation that fits, with one; None where
    none fits (M 4.2.2)."""
    high = layers.all_ticks
    found = allocate(layers, names, memory, target, high, rules)
    if found is None:
        return None
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        tried = allocate(layers, names, memory, target, middle, rules)
        if tried is None:
            low = middle
        else:
            high, found = middle, tried
    return high, found


def allocations(
    layers: Layers, names: tuple[str, ...], memory: int, below: int
) -> list[tuple[int, Allocation]]:
    """Allocations that might be scheduled within a period of less than `below` ticks, with the
    least period at which the program takes them, the shortest first (M Algorithm 1).

    MadPipe-DP falls as its target rises, so that the best of both is where they meet: periods are
    halved between those with and without an allocation that fits.
    """
    low = max(int(layers.load[-1]) // len(names), int(np.diff(layers.load).max()), 1) - 1
    tried = allocate(layers, names, memory, below - 1, below - 1) if below - 1 > low else None
    if tried is None:
        return []
    high, found = below - 1, [(below - 1, tried)]
    for _ in range(ROUNDS if layers.count > SHORT else 64):
        middle = (low + high) // 2
        if middle == low:
            break
        tried = allocate(layers, names, memory, middle, middle)
        if tried is None:
            low = middle
        else:
            high = middle
            found.append((middle, tried))
    return found[::-1]


@njit(cache=True)
def _label_stages(
    load: Integers,
    weights: Integers,
    kept: Integers,
    work: Integers,
    buffer: Integers,
    cut: Integers,
    normal: int,
    memory: int,
    target: int,
    most: int,
    printed: bool,
) -> Integers:
    """(last layer, whether on the special device) of each stage in order, shape (stages, 2); empty
    where nothing was found."""
    length = load.size - 1
    places = LOADS * MEMORIES * 2
    head = np.full((length + 1, normal + 1, places), -1, np.int32)
    filled = np.zeros((length + 1, normal + 1, places), np.int8)
    size = 1 << 12
    # of a label: load, memory and stored batches of the special device, delay, the cut that the
    # link of the first stage carries already, whether this stage is special, and where from
    figures = np.empty((size, 4), np.int64)
    origin = np.empty((size, 5), np.int32)
    figures[0] = 0
    origin[0, 0], origin[0, 1], origin[0, 2], origin[0, 3], origin[0, 4] = -1, 0, -1, 0, 0
    head[length, 0, 0] = 0
    count = 1
    best = -1
    own = np.empty(size, np.int32)
    for last in range(length, 0, -1):
        for used in range(normal + 1):
            number = 0
            for place in range(places):
                index = head[last, used, place]
                while index >= 0:
                    if number == own.size:
                        grown = np.empty(2 * own.size, np.int32)
                        grown[:number] = own
                        own = grown
                    own[number] = index
                    number += 1
                    index = origin[index, 2]
            for position in range(number):
                label = own[position]
                if _dominated(figures, origin, own[:number], label):
                    continue
                ticks, stored, before, carried = figures[label]
                from_special = origin[label, 1] == 1
                any_special = origin[label, 4] == 1
                for special in range(2):
                    if special == 0 and used == normal:
                        continue
                    meets = last < length and (
                        printed or not (from_special and special == 1)
                    )
                    start = before
                    if meets:
                        if cut[last] > most:
                            continue
                        start = delayed(before, cut[last], target)
                    if not printed and special == 1 and last < length and not from_special and (
                        carried + cut[last] > most
                    ):
                        continue
                    least = np.int64(1)
                    if printed and used == normal:
                        least = np.int64(-1)
                    most_work = np.int64(0)
                    for first in range(last, 0, -1):
                        own_ticks = load[last] - load[first - 1]
                        taken = own_ticks + (ticks if special == 1 else 0)
                        if taken > most:
                            break
                        most_work = max(most_work, work[first])
                        if least < 0 and first > 1:
                            continue
                        group = max(periods(start + own_ticks, target), np.int64(1))
                        bytes_kept = kept[last] - kept[first - 1]
                        needed = weights[last] - weights[first - 1]
                        if special == 0:
                            needed += group * bytes_kept + buffer[last] + most_work
                            if needed > memory:
                                break
                            if needed + buffer[first - 1] > memory:
                                continue
                            after_memory = stored
                            if not printed and from_special:
                                after_memory += buffer[last]
                            if after_memory > memory:
                                break
                        else:
                            flying = group - 1
                            if not printed:
                                flying = group if not any_special else max(flying, np.int64(1))
                            needed += stored + flying * bytes_kept
                            if meets:
                                needed += buffer[last]
                            if needed + most_work > memory:
                                break
                            if printed:
                                needed += buffer[first - 1]
                                if needed > memory:
                                    continue
                            after_memory = needed
                        after_ticks = taken if special == 1 else ticks
                        left = normal - used - (1 - special)
                        if load[first - 1] > left * most + most - after_ticks:
                            continue
                        if weights[first - 1] > (left + 1.0) * memory - after_memory:
                            continue
                        after_used = used + 1 - special
                        after = delayed(start, own_ticks, target)
                        carries = np.int64(0)
                        if special == 0 and from_special:
                            carries = cut[last]
                        place = after_ticks * LOADS // (most + 1) * MEMORIES
                        place += after_memory * MEMORIES // (memory + 1)
                        place = place * 2 + special
                        row = head[first - 1, after_used]
                        fill = filled[first - 1, after_used]
                        known = 1 if special == 1 or any_special else 0
                        index = row[place]
                        worst, worse, slowest = np.int32(-1), False, np.int64(-1)
                        while index >= 0:
                            other = figures[index]
                            if (
                                other[0] <= after_ticks
                                and other[1] <= after_memory
                                and other[2] <= after
                                and other[3] <= carries
                                and origin[index, 4] >= known
                            ):
                                worse = True
                                break
                            if other[2] > slowest:
                                worst, slowest = index, other[2]
                            index = origin[index, 2]
                        if worse:
                            continue
                        if fill[place] >= DEPTH:
                            if after >= slowest:
                                continue
                            slot = worst
                        else:
                            if count == figures.shape[0]:
                                more = np.empty((2 * count, 4), np.int64)
                                more[:count] = figures
                                figures = more
                                further = np.empty((2 * count, 5), np.int32)
                                further[:count] = origin
                                origin = further
                            slot = np.int32(count)
                            count += 1
                            origin[slot, 2] = row[place]
                            row[place] = slot
                            fill[place] += 1
                        figures[slot, 0] = after_ticks
                        figures[slot, 1] = after_memory
                        figures[slot, 2] = after
                        figures[slot, 3] = carries
                        origin[slot, 0] = label
                        origin[slot, 1] = special
                        origin[slot, 3] = last
                        origin[slot, 4] = known
                        if first == 1 and (best < 0 or after_memory <= figures[best, 1]):
                            best = slot
    stages = 0
    index = best
    while index > 0:
        stages += 1
        index = origin[index, 0]
    found = np.empty((stages, 2), np.int64)
    index = best
    for stage in range(stages):
        found[stage, 0] = origin[index, 3]
        found[stage, 1] = origin[index, 1]
        index = origin[index, 0]
    return found


@njit(cache=True)
def _dominated(figures: Integers, origin: Integers, own: Integers, label: int) -> bool:
    """Whether another label with as many devices used is at least as good in all, and better or
    earlier."""
    mine = figures[label]
    for other in own:
        if other == label or origin[other, 1] != origin[label, 1]:
            continue
        if origin[other, 4] < origin[label, 4]:
            continue
        its = figures[other]
        if its[0] <= mine[0] and its[1] <= mine[1] and its[2] <= mine[2] and its[3] <= mine[3]:
            same = (
                its[0] == mine[0]
                and its[1] == mine[1]
                and its[2] == mine[2]
                and its[3] == mine[3]
                and origin[other, 4] == origin[label, 4]
            )
            if not same or other < label:
                return True
    return False
