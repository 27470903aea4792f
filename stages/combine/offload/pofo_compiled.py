"""The forward phase of `pofo`, compiled.

A label is a row of `STAY`, `SENT`, `DUE`, `TIME` (slots and seconds) with its parent and what the
position before it did (whether it `PASSES` on, and whether its input `LEAVES`). Labels fall into
cells of (stay, sent, due); the fastest of each stays.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from tightfit.stages.combine.offload.spans import SpanChain
from tightfit.stages.combine.offload.spans_compiled import CLOSE, between, span_cell
from tightfit.stages.combine.vectors import Integers, Seconds

STAY, SENT, DUE, TIME = range(4)
LEAVES, PASSES = 1, 2
"""Bits of what a label did: its input left; it kept nothing of the positions up to the next."""
CELLS = 48
"""Cells along each number."""


class PofoLabels(NamedTuple):
    """Labels with their trails; those at `ranges[2 q + x]` (first and last + 1) are of position q,
    whose input is all that q - 1 kept where x is 1."""

    labels: Seconds
    trail: Integers
    ranges: Integers


class PofoSizes(NamedTuple):
    """Slots by position: `early[s, t]`, which passing on from s to t needs at most where memory
    empties from its beginning on, the `outputs`, and all that is `stored`."""

    early: Seconds
    outputs: Seconds
    stored: Seconds


class Bounds(NamedTuple):
    """Slots there are, the seconds that no label reaches, and the labels of a position at most."""

    budget: float
    limit: float
    most: int


@njit(cache=True)
def cell_of(label: Seconds, budget: float) -> int:
    """The cell of a label."""
    place = 0
    for index in range(3):
        part = math.ceil(label[index] / budget * (CELLS - 1) - CLOSE)
        place = place * CELLS + min(max(part, 0), CELLS - 1)
    return place


@njit(cache=True)
def moved(
    made: Seconds,
    label: Seconds,
    size: float,
    ahead: float,
    after: float,
    rate: float,
    leaves: bool,
) -> None:
    """The next label, after `ahead` and `after` seconds on both sides of it (S Table 4.1)."""
    gone, come = ahead * rate, after * rate
    if leaves:
        made[STAY] = label[STAY]
        made[SENT] = max(label[SENT] + size - gone, 0.0)
        made[DUE] = max(label[DUE] - come, 0.0) + size
    else:
        made[STAY] = label[STAY] + size
        made[SENT] = max(label[SENT] - gone, 0.0)
        made[DUE] = max(label[DUE] - come, 0.0)
    made[TIME] = label[TIME] + ahead + after


@njit(cache=True)
def keeping(
    budget: float, label: Seconds, size: float, need_f: float, need_b: float, rate: float
) -> tuple[float, float]:
    """Case 1 of S 4.2.1: the idle seconds before the forward and after the backward; infinite
    where there is no room."""
    room = budget - label[STAY] - size
    if need_f > room + CLOSE or need_b > room + CLOSE:
        return math.inf, math.inf
    before = max((need_f + label[SENT] - room) / rate, 0.0)
    return before, max((need_b + label[DUE] - room) / rate, 0.0)


@njit(cache=True)
def keep_best(
    labels: Seconds, trail: Integers, begin: int, cells: Seconds, origins: Integers, most: int
) -> int:
    """Moves the labels of the cells to `labels` from `begin` on, at most `most`, those that another
    is nowhere worse than left out, and empties the cells; how many there are."""
    found = np.empty(len(cells), dtype=np.int64)
    full = count = 0
    for place in range(len(cells)):
        if cells[place, TIME] < math.inf:
            found[full] = place
            full += 1
    seconds = np.empty(full)
    for number in range(full):
        seconds[number] = cells[found[number], TIME]
    for rank in np.argsort(seconds):
        place = found[rank]
        label = cells[place]
        worse = False
        for index in range(begin, begin + count):
            other = labels[index]
            if (
                other[STAY] <= label[STAY]
                and other[SENT] <= label[SENT]
                and other[DUE] <= label[DUE]
            ):
                worse = True
                break
        if not worse:
            for number in range(4):
                labels[begin + count, number] = label[number]
            trail[begin + count, 0] = origins[place, 0]
            trail[begin + count, 1] = origins[place, 1]
            count += 1
            if count == most:
                break
    for number in range(full):
        cells[found[number], TIME] = math.inf
    return count


@njit(cache=True)
def _keeps(
    chain: SpanChain, budget: float, label: Seconds, size: float, s: int
) -> tuple[float, float]:
    """The seconds before the end of the forward of s, which keeps all, and from the beginning of
    its backward; infinite where there is no room."""
    before, behind = keeping(
        budget,
        label,
        size,
        chain.all_peak[s] + chain.beside[-1],
        chain.back_peak[s] + chain.grown[s],
        chain.rate,
    )
    return before + chain.forward[s], behind + chain.backward[s]


@njit(cache=True)
def _passes(
    cost: Seconds, chain: SpanChain, early: Seconds, label: Seconds, room: float, s: int, t: int
) -> tuple[float, float]:
    """The same where s..t are passed first, and run within `room` slots in the backward phase."""
    last = chain.output.size - 1
    after = between(cost, span_cell(last, s, t), int(room + CLOSE), label[DUE])
    late = early[s, t] + chain.beside[last] + label[SENT] - room
    return chain.passes[t] - chain.passes[s - 1] + max(late / chain.rate, 0.0), after


@njit(cache=True)
def _try(
    cells: Seconds, origins: Integers, made: Seconds, budget: float, index: int, did: int
) -> None:
    """Keeps a label if it is the fastest of its cell."""
    place = cell_of(made, budget)
    if made[TIME] < cells[place, TIME]:
        for number in range(4):
            cells[place, number] = made[number]
        origins[place, 0], origins[place, 1] = index, did


@njit(cache=True)
def spread_labels(
    found: PofoLabels, cost: Seconds, chain: SpanChain, sizes: PofoSizes, bounds: Bounds
) -> None:
    """Makes the labels of all positions, one after the other. The first label is there."""
    labels, trail, ranges = found
    budget, limit, most = bounds
    last = chain.output.size - 1
    cells = np.full((CELLS * CELLS * CELLS, 4), math.inf)
    origins = np.zeros((CELLS * CELLS * CELLS, 2), dtype=np.int64)
    made = np.zeros(4)
    end, free = chain.beside[last], 1
    for q in range(2, last + 1):
        left = chain.once[last] - chain.once[q - 1]
        for x in range(2):
            for s in range(q - 1 if x == 1 else 1, q):
                need, first = chain.pass_peak[s, q - 1] + end, chain.pass_peak[s, s] + end
                least = chain.passes[q - 1] - chain.passes[s - 1]
                least += chain.once[q - 1] - chain.once[s - 1] + left
                for y in range(2):
                    size = sizes.stored[s - 1] if y == 1 else sizes.outputs[s - 1]
                    for index in range(ranges[2 * s + y, 0], ranges[2 * s + y, 1]):
                        label = labels[index]
                        room = budget - label[STAY] - size
                        stays = leaves = True
                        if x == 1:
                            ahead, after = _keeps(chain, budget, label, size, s)
                        else:
                            stays = need <= room + CLOSE
                            leaves = need <= room + size + CLOSE and first <= room + CLOSE
                            if not leaves or label[TIME] + least >= limit:
                                continue
                            ahead, after = _passes(cost, chain, sizes.early, label, room, s, q - 1)
                        did = 0 if x == 1 else PASSES
                        for way in range(2):
                            if not (leaves if way == LEAVES else stays):
                                continue
                            moved(made, label, size, ahead, after, chain.rate, way == LEAVES)
                            if made[TIME] + left < limit:
                                _try(cells, origins, made, budget, index, did + way)
            count = keep_best(labels, trail, free, cells, origins, most)
            ranges[2 * q + x, 0], ranges[2 * q + x, 1] = free, free + count
            free += count
