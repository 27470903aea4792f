"""The forward phase of `pofo`, compiled.

A label is a row of `STAY`, `SENT`, `DUE`, `TIME` (slots and seconds) with its parent and what the
position before it did (`KEEPS` or passes on, and whether its input leaves). Labels fall into cells of
(stay, sent, due); the fastest of each stays.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from stages.combine.offload.spans import Integers, Seconds
from stages.combine.offload.spans_compiled import _ARRAYS, CLOSE, between, span_cell

STAY, SENT, DUE, TIME = range(4)
LEAVES, PASSES = 1, 2
"""Bits of what a label did: its input left; it kept nothing of the positions up to the next."""
CELLS = 48
"""Cells along each number."""


@njit("int64(float64[::1], float64)", cache=True)
def cell_of(label: Seconds, budget: float) -> int:
    """The cell of a label."""
    place = 0
    for index in range(3):
        part = int(math.ceil(label[index] / budget * (CELLS - 1) - CLOSE))
        place = place * CELLS + min(max(part, 0), CELLS - 1)
    return place


@njit(
    "void(float64[::1], float64[::1], float64, float64, float64, float64, float64, boolean)",
    cache=True,
)
def moved(
    made: Seconds,
    label: Seconds,
    size: float,
    ahead: float,
    after: float,
    seconds: float,
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
    made[TIME] = label[TIME] + seconds


@njit(
    "float64(float64[::1], float64, float64, float64, float64, float64, float64, float64, float64)",
    cache=True,
)
def keeping(
    waits: Seconds,
    budget: float,
    stay: float,
    sent: float,
    due: float,
    size: float,
    need_f: float,
    need_b: float,
    rate: float,
) -> float:
    """Case 1 of S 4.2.1: the idle seconds before the forward and after the backward, together;
    infinite where there is no room."""
    room = budget - stay - size
    if need_f > room + CLOSE or need_b > room + CLOSE:
        return math.inf
    waits[0] = max((need_f + sent - room) / rate, 0.0)
    waits[1] = max((need_b + due - room) / rate, 0.0)
    return waits[0] + waits[1]


@njit(
    "int64(float64[:,::1], int64[:,::1], int64, float64[:,::1], int64[:,::1], float64, int64)",
    cache=True,
)
def keep_best(
    labels: Seconds,
    trail: Integers,
    begin: int,
    cells: Seconds,
    origins: Integers,
    budget: float,
    most: int,
) -> int:
    """Moves the labels of the cells to `labels` from `begin` on, at most `most`, those that another
    is nowhere worse than left out, and empties the cells; how many there are."""
    found = np.flatnonzero(cells[:, TIME] < math.inf)
    order = found[np.argsort(cells[found, TIME])]
    count = 0
    for place in order:
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
            labels[begin + count] = label
            trail[begin + count] = origins[place]
            count += 1
            if count == most:
                break
    cells[found, TIME] = math.inf
    return count


@njit(
    f"void(float64[:,::1], int64[:,::1], int64[:,::1], float64[:,:,::1], {_ARRAYS}, "
    "float64[:,::1], float64[::1], float64[::1], float64, float64, int64)",
    cache=True,
)
def spread_labels(
    labels: Seconds,
    trail: Integers,
    ranges: Integers,
    cost: Seconds,
    rate: float,
    output: Integers,
    kept: Integers,
    forward: Seconds,
    backward: Seconds,
    all_peak: Seconds,
    back_peak: Seconds,
    beside: Seconds,
    grown: Seconds,
    pass_peak: Seconds,
    lag_peak: Seconds,
    passes: Seconds,
    once: Seconds,
    early_peak: Seconds,
    outputs: Seconds,
    stored: Seconds,
    budget: float,
    limit: float,
    most: int,
) -> None:
    """Makes the labels of all positions, one after the other: those at `ranges[2 q + x]` (first
    and last + 1) are of position q, whose input is all that q - 1 kept where x is 1. None takes
    `limit` seconds or more. The first label is there."""
    last = output.size - 1
    cells = np.full((CELLS * CELLS * CELLS, 4), math.inf)
    origins = np.zeros((CELLS * CELLS * CELLS, 2), dtype=np.int64)
    waits, made = np.zeros(2), np.zeros(4)
    end, free = beside[last], 1
    for q in range(2, last + 1):
        left = once[last] - once[q - 1]
        for x in range(2):
            for s in range(q - 1, q - 2, -1) if x == 1 else range(1, q):
                for y in range(2):
                    size = stored[s - 1] if y == 1 else outputs[s - 1]
                    for index in range(ranges[2 * s + y, 0], ranges[2 * s + y, 1]):
                        label = labels[index]
                        room = budget - label[STAY] - size
                        if x == 1:
                            idle = keeping(
                                waits, budget, label[STAY], label[SENT], label[DUE], size,
                                all_peak[s] + end, back_peak[s] + grown[s], rate,
                            )  # fmt: skip
                            if idle == math.inf:
                                continue
                            ahead, after = waits[0] + forward[s], waits[1] + backward[s]
                            first, second = True, True
                        else:
                            t = q - 1
                            need = pass_peak[s, t] + end
                            second = need <= room + CLOSE
                            first = need <= room + size + CLOSE
                            first = first and pass_peak[s, s] + end <= room + CLOSE
                            passed = passes[t] - passes[s - 1]
                            so_far = label[TIME] + passed + once[t] - once[s - 1] + left
                            if not first or so_far >= limit:
                                continue
                            after = between(
                                cost, span_cell(last, s, t), int(room + CLOSE), label[DUE]
                            )
                            if after == math.inf:
                                continue
                            late = early_peak[s, t] + end + label[SENT] - room
                            ahead = passed + max(late / rate, 0.0)
                        for leaves in range(2):
                            if (leaves == 1 and not first) or (leaves == 0 and not second):
                                continue
                            moved(made, label, size, ahead, after, ahead + after, rate, leaves == 1)
                            if made[TIME] + left >= limit:
                                continue
                            place = cell_of(made, budget)
                            if made[TIME] < cells[place, TIME]:
                                cells[place] = made
                                origins[place, 0] = index
                                origins[place, 1] = (LEAVES if leaves == 1 else 0) + (
                                    0 if x == 1 else PASSES
                                )
            count = keep_best(labels, trail, free, cells, origins, budget, most)
            ranges[2 * q + x, 0], ranges[2 * q + x, 1] = free, free + count
            free += count
