"""MadPipe's program: allocations of one stage a device but for a special one, which may have
several (M 4.2, S 7.1).

Stages are made from the end of the chain. A label is such a beginning: the load and the memory of
the special device so far, and the delay V between the end of the last forward that is left and
the start of its backward. A label that another equals or betters in all is dropped. Where more
labels come than there is place for, the rest is dropped, too: then the program is a heuristic.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tightfit.stages.combine.allocate.allocation import Allocation, Stage, inner_of
from tightfit.stages.combine.allocate.halving import least_found
from tightfit.stages.combine.allocate.labels import LayerSizes, Within, label_stages
from tightfit.stages.combine.allocate.layers import Layers
from tightfit.stages.combine.vectors import Integers

ROUNDS = 10
"""Periods that are tried for a long chain."""
SHORT = 24
"""Layers up to which periods are tried until none is left between two, and places are many."""
FINE, COARSE, MENUS = (32, 8, 6), (24, 6, 2), (12, 4, 2)
"""Places for labels by load and by memory, and labels in each, of short and of long chains, and
where stages may compute again."""


@dataclass(frozen=True)
class Rules:
    """How memory and links are counted.

    `printed` does as M prints. Every two stages meet over a link, and a link carries the largest of
    its cuts. The special device stores one batch less for each stage than fly, and takes all in one
    stage where no other device is left. Else neighbours on the special device meet in its
    memory, and the cuts of a link add up. The special device then stores for each stage as many
    batches as it must at the moment when its last one does, or, where `all_flying`, all that are in
    flight: less is seldom possible.
    """

    printed: bool = False
    all_flying: bool = False


SOUND, CAREFUL, PRINTED = Rules(), Rules(all_flying=True), Rules(printed=True)


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
    menu = layers.menu or layers.everything
    recomputes = layers.menu is not None
    sizes = LayerSizes(
        np.cumsum(menu.least), layers.weights, least_bytes(layers, target, rules),
        layers.buffer, layers.cut, menu.begin, menu.ticks, menu.stored, menu.work,
    )  # fmt: skip
    places = MENUS if recomputes else FINE if layers.count <= SHORT else COARSE
    found = label_stages(
        sizes,
        Within(normal, memory, target, most, rules.printed, rules.all_flying, *places, recomputes),
    )
    if not len(found):
        return None
    stages, device, first = list[Stage](), 0, 1
    for last, special, _ in found:
        number = normal if special else device
        device += 0 if special else 1
        stages.append(Stage(first, int(last), number))
        first = int(last) + 1
    return Allocation(layers, tuple(stages), names, inner_of(layers, stages, found[:, 2].tolist()))


def least_load(
    layers: Layers, names: tuple[str, ...], memory: int, target: int, rules: Rules = SOUND
) -> tuple[int, Allocation] | None:
    """MadPipe-DP(target): the least load in ticks of an allocation that fits, with one; None where
    none fits (M 4.2.2)."""
    high = layers.longest
    found = allocate(layers, names, memory, target, high, rules)
    if found is None:
        return None
    return least_found(
        -1, high, found, lambda load: allocate(layers, names, memory, target, load, rules)
    )


def allocations(
    layers: Layers, names: tuple[str, ...], memory: int, below: int
) -> list[tuple[int, Allocation]]:
    """Allocations that might be scheduled within a period of less than `below` ticks, with the
    period at which the program takes them; the most promising first."""
    with ThreadPoolExecutor(2) as pool:
        hopeful, careful = pool.map(
            lambda rules: _halved(layers, names, memory, below, rules), (SOUND, CAREFUL)
        )
    middles = (hopeful[len(hopeful) // 2 :], careful[len(careful) // 2 :])
    return [*hopeful[:1], *careful[:1], *(middle[0] for middle in middles if middle)]


def _halved(
    layers: Layers, names: tuple[str, ...], memory: int, below: int, rules: Rules
) -> list[tuple[int, Allocation]]:
    """M Algorithm 1, the shortest period first. MadPipe-DP falls as its target rises, so that the
    best of both is where they meet: the range of periods is halved between those with and without
    an allocation that fits."""
    low = max(math.floor(layers.least_period(len(names))), 1) - 1
    high, found = below, list[tuple[int, Allocation]]()
    long = layers.count > SHORT or layers.menu is not None
    for number in range(ROUNDS if long else 64):
        middle = (low + high) // 2 if number else high - 1
        if middle <= low:
            break
        tried = allocate(layers, names, memory, middle, middle, rules)
        if tried is not None:
            high = middle
            found.append((middle, tried))
        elif not found:
            break
        else:
            low = middle
    return found[::-1]


def least_bytes(layers: Layers, target: int, rules: Rules = SOUND) -> Integers:
    """The bytes that layers 1..l add to their devices at least, by l. A device stores of each
    layer, all the time, one batch less than are in flight. In flight are as many as periods of
    `target` ticks pass from the layer's forward to its backward. Where stages may compute again,
    weights alone."""
    if layers.menu is not None:
        return layers.weights
    later = layers.load[-1] - layers.load[:-1]
    flying = -(-later // target) - 1
    if not rules.printed:
        flying = np.maximum(flying, 1)
    stored = np.concatenate([[0], flying * layers.stored[1:]])
    return layers.weights + np.cumsum(np.maximum(stored, 0))
