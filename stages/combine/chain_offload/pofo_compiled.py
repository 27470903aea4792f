"""The table of `spans`, compiled."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from tightfit.stages.combine.array_types import IntArray, SecondsArray
from tightfit.stages.combine.chain_offload.pofo import SpanChain

TOLERANCE = 1e-9


@njit(cache=True, inline="always")
def span_row(length: int, s: int, t: int) -> int:
    """The row of a span, as `stages.combine.chain.dp_table.segment_row`."""
    return (s - 1) * length - (s - 1) * (s - 2) // 2 + t - s


@njit(cache=True, inline="always")
def interpolate_cost(cost: SecondsArray, row: int, room: int, due: float) -> float:
    """The cost of a span where `due` is between two slots; infinite where it does not fit."""
    if room < 0 or due > room + TOLERANCE:
        return math.inf
    low = int(due + TOLERANCE)
    share = due - low
    if share <= TOLERANCE:
        return float(cost[row, room, low])
    if low + 1 > room:
        return math.inf
    return float(cost[row, room, low] * (1 - share) + cost[row, room, low + 1] * share)


@njit(cache=True)
def keep_position_cost(
    cost: SecondsArray, chain: SpanChain, s: int, t: int, room: int, due: float
) -> tuple[float, float]:
    """Case 1: position s keeps everything. The time of the span so, and what the positions after s
    bring back."""
    need_f, need_b = (
        chain.all_peak[s] + chain.beside[t],
        chain.back_peak[s] + chain.later_gradients[s],
    )
    if need_f > room + TOLERANCE or need_b > room + TOLERANCE:
        return math.inf, 0.0
    if s == t:
        late = max(need_f - chain.rate * chain.backward[s], need_b) + due - room
        idle = max(late / chain.rate, 0.0)
        return chain.forward[s] + chain.backward[s] + idle, 0.0
    after = max((need_b + due - room) / chain.rate, 0.0)
    inner_due = max(due - (chain.backward[s] + after) * chain.rate, 0.0)
    row = span_row(chain.output.size - 1, s + 1, t)
    inner = interpolate_cost(cost, row, room - chain.kept[s], inner_due)
    if inner == math.inf:
        return math.inf, 0.0
    left = max(inner_due - inner * chain.rate, 0.0)
    ahead = max((need_f + left - room) / chain.rate, 0.0)
    return chain.forward[s] + chain.backward[s] + after + ahead + inner, inner_due


@njit(cache=True)
def pass_positions_cost(
    cost: SecondsArray, chain: SpanChain, s: int, r: int, t: int, room: int, due: float
) -> tuple[float, float]:
    """Case 2: s..r are passed, then come r + 1 .. t, and s..r again. Its time, and what r + 1 .. t
    bring back."""
    if chain.pass_peak[s, r] + chain.beside[t] > room + TOLERANCE:
        return math.inf, 0.0
    length = chain.output.size - 1
    head = interpolate_cost(cost, span_row(length, s, r), room, due)
    if head == math.inf:
        return math.inf, 0.0
    tail_due = max(due - head * chain.rate, 0.0)
    tail = interpolate_cost(cost, span_row(length, r + 1, t), room - chain.output[r], tail_due)
    if tail == math.inf:
        return math.inf, 0.0
    left = max(tail_due - tail * chain.rate, 0.0)
    idle = max((chain.lag_peak[s, r] + chain.beside[t] + left - room) / chain.rate, 0.0)
    return chain.passes[r] - chain.passes[s - 1] + head + tail + idle, tail_due


@njit(cache=True)
def choose_split(
    cost: SecondsArray, chain: SpanChain, s: int, t: int, room: int, due: float
) -> tuple[int, float]:
    """The best split of a span (0: s keeps everything), and what comes back within the positions
    after it."""
    best, inner = keep_position_cost(cost, chain, s, t, room, due)
    split = 0
    for r in range(s, t):
        found, tail = pass_positions_cost(cost, chain, s, r, t, room, due)
        if found < best:
            best, split, inner = found, r, tail
    return split, inner


class _Split(NamedTuple):
    """A place to split a span at, from `first` slots on: the slots of what is passed on, the
    seconds of passing, those that the positions behind take at least, and the slots that the
    second run of the positions before needs."""

    first: int
    output: int
    passed: float
    least: float
    lag: float


@njit(cache=True)
def _try_split(
    best: SecondsArray, heads: SecondsArray, tails: SecondsArray, split: _Split, rate: float
) -> None:
    """Case 2 for all budgets at once."""
    first, output, passed, least, lag = split
    for room in range(first, best.shape[0]):
        inner = room - output
        if best[room, room] <= passed + least + heads[room, 0]:
            continue
        for due in range(room + 1):
            head = heads[room, due]
            begun = passed + head
            if begun + least >= best[room, due]:
                continue
            left = max(due - head * rate, 0.0)
            if left > inner + TOLERANCE:
                continue
            low = int(left + TOLERANCE)
            share = left - low
            tail = tails[inner, low]
            if share > TOLERANCE:
                if low + 1 > inner:
                    continue
                tail = tail * (1 - share) + tails[inner, low + 1] * share
            found = begun + tail
            if found < best[room, due]:
                after = max(left - tail * rate, 0.0)
                found += max((lag + after - room) / rate, 0.0)
                best[room, due] = min(best[room, due], found)


@njit(cache=True)
def fill_span_table(cost: SecondsArray, chain: SpanChain) -> None:
    """Fills the table, shorter spans first."""
    length, width = chain.output.size - 1, cost.shape[1]
    for t in range(1, length + 1):
        for s in range(t, 0, -1):
            row = span_row(length, s, t)
            for room in range(width):
                for due in range(room + 1):
                    cost[row, room, due], _ = keep_position_cost(
                        cost, chain, s, t, room, float(due)
                    )
            for r in range(s, t):
                passed = chain.passes[r] - chain.passes[s - 1]
                need = chain.pass_peak[s, r] + chain.beside[t] - TOLERANCE
                lag = chain.lag_peak[s, r] + chain.beside[t]
                head_row, tail_row = span_row(length, s, r), span_row(length, r + 1, t)
                first = max(math.ceil(need), chain.output[r])
                if first < width:
                    split = _Split(
                        first, chain.output[r], passed, chain.once[t] - chain.once[r], lag
                    )
                    heads, tails = cost[head_row], cost[tail_row]
                    _try_split(cost[row], heads, tails, split, chain.rate)


STAY, SENT, DUE, TIME = range(4)
LEAVES, PASSES = 1, 2
"""Bits of what a label did: its input left; it kept nothing of the positions up to the next."""
CELLS = 48
"""Cells along each number."""


class PofoLabels(NamedTuple):
    """Labels with their trails; those at `ranges[2 q + x]` (first and last + 1) are of position q,
    whose input is all that q - 1 kept where x is 1."""

    labels: SecondsArray
    trail: IntArray
    ranges: IntArray


class PofoSizes(NamedTuple):
    """Slots by position: `early[s, t]`, which passing on from s to t needs at most where memory
    empties from its beginning on, the `outputs`, and all that is `stored`."""

    early: SecondsArray
    outputs: SecondsArray
    stored: SecondsArray


class PofoLimits(NamedTuple):
    """Slots there are, the seconds that no label reaches, and the labels of a position at most."""

    budget: float
    limit: float
    most: int


@njit(cache=True)
def label_cell(label: SecondsArray, budget: float) -> int:
    """The cell of a label."""
    place = 0
    for index in range(3):
        part = math.ceil(label[index] / budget * (CELLS - 1) - TOLERANCE)
        place = place * CELLS + min(max(part, 0), CELLS - 1)
    return place


@njit(cache=True)
def extend_label(
    made: SecondsArray,
    label: SecondsArray,
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
def keep_idle_seconds(
    budget: float, label: SecondsArray, size: float, need_f: float, need_b: float, rate: float
) -> tuple[float, float]:
    """Case 1 of S 4.2.1: the idle seconds before the forward and after the backward; infinite
    where there is no room."""
    room = budget - label[STAY] - size
    if need_f > room + TOLERANCE or need_b > room + TOLERANCE:
        return math.inf, math.inf
    before = max((need_f + label[SENT] - room) / rate, 0.0)
    return before, max((need_b + label[DUE] - room) / rate, 0.0)


@njit(cache=True)
def prune_labels(
    labels: SecondsArray,
    trail: IntArray,
    begin: int,
    cells: SecondsArray,
    origins: IntArray,
    most: int,
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
def _keep_seconds(
    chain: SpanChain, budget: float, label: SecondsArray, size: float, s: int
) -> tuple[float, float]:
    """The seconds before the end of the forward of s, which keeps all, and from the beginning of
    its backward; infinite where there is no room."""
    before, behind = keep_idle_seconds(
        budget,
        label,
        size,
        chain.all_peak[s] + chain.beside[-1],
        chain.back_peak[s] + chain.later_gradients[s],
        chain.rate,
    )
    return before + chain.forward[s], behind + chain.backward[s]


@njit(cache=True)
def _pass_seconds(
    cost: SecondsArray,
    chain: SpanChain,
    early: SecondsArray,
    label: SecondsArray,
    room: float,
    s: int,
    t: int,
) -> tuple[float, float]:
    """The same where s..t are passed first, and run within `room` slots in the backward phase."""
    last = chain.output.size - 1
    after = interpolate_cost(cost, span_row(last, s, t), int(room + TOLERANCE), label[DUE])
    late = early[s, t] + chain.beside[last] + label[SENT] - room
    return chain.passes[t] - chain.passes[s - 1] + max(late / chain.rate, 0.0), after


@njit(cache=True)
def _insert_label(
    cells: SecondsArray, origins: IntArray, made: SecondsArray, budget: float, index: int, did: int
) -> None:
    """Keeps a label if it is the fastest of its cell."""
    place = label_cell(made, budget)
    if made[TIME] < cells[place, TIME]:
        for number in range(4):
            cells[place, number] = made[number]
        origins[place, 0], origins[place, 1] = index, did


@njit(cache=True)
def propagate_labels(
    found: PofoLabels, cost: SecondsArray, chain: SpanChain, sizes: PofoSizes, bounds: PofoLimits
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
                            ahead, after = _keep_seconds(chain, budget, label, size, s)
                        else:
                            stays = need <= room + TOLERANCE
                            leaves = need <= room + size + TOLERANCE and first <= room + TOLERANCE
                            if not leaves or label[TIME] + least >= limit:
                                continue
                            ahead, after = _pass_seconds(
                                cost, chain, sizes.early, label, room, s, q - 1
                            )
                        did = 0 if x == 1 else PASSES
                        for way in range(2):
                            if not (leaves if way == LEAVES else stays):
                                continue
                            extend_label(made, label, size, ahead, after, chain.rate, way == LEAVES)
                            if made[TIME] + left < limit:
                                _insert_label(cells, origins, made, budget, index, did + way)
            count = prune_labels(labels, trail, free, cells, origins, most)
            ranges[2 * q + x, 0], ranges[2 * q + x, 1] = free, free + count
            free += count
