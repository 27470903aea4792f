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

from stages.combine.allocate.allocation import Allocation, Stage
from stages.combine.allocate.labels import Sizes, Within, label_stages
from stages.combine.allocate.layers import Integers, Layers

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
    sizes = Sizes(
        layers.load, layers.weights, layers.kept, _work(layers), layers.buffer, layers.cut
    )
    found = label_stages(sizes, Within(normal, memory, target, most, rules.printed))
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


def _work(layers: Layers) -> Integers:
    """The temporary bytes of layers k..l, by k and l."""
    found = np.zeros((layers.count + 1, layers.count + 1), np.int64)
    for first in range(1, layers.count + 1):
        found[first, first:] = np.maximum.accumulate(layers.work[first:])
    return found
