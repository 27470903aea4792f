"""The table of `spans`, compiled."""

from __future__ import annotations

import math
from typing import NamedTuple

from numba import njit

from tightfit.stages.combine.offload.spans import SpanChain
from tightfit.stages.combine.vectors import Seconds

CLOSE = 1e-9


@njit(cache=True, inline="always")
def span_cell(length: int, s: int, t: int) -> int:
    """The row of a span, as `stages.combine.chain.table.cell`."""
    return (s - 1) * length - (s - 1) * (s - 2) // 2 + t - s


@njit(cache=True, inline="always")
def between(cost: Seconds, row: int, room: int, due: float) -> float:
    """The cost of a span where `due` is between two slots; infinite where it does not fit."""
    if room < 0 or due > room + CLOSE:
        return math.inf
    low = int(due + CLOSE)
    share = due - low
    if share <= CLOSE:
        return float(cost[row, room, low])
    if low + 1 > room:
        return math.inf
    return float(cost[row, room, low] * (1 - share) + cost[row, room, low + 1] * share)


@njit(cache=True)
def run_once(
    cost: Seconds, chain: SpanChain, s: int, t: int, room: int, due: float
) -> tuple[float, float]:
    """Case 1: position s keeps everything. The time of the span so, and what the positions after s
    bring back."""
    need_f, need_b = chain.all_peak[s] + chain.beside[t], chain.back_peak[s] + chain.grown[s]
    if need_f > room + CLOSE or need_b > room + CLOSE:
        return math.inf, 0.0
    if s == t:
        late = max(need_f - chain.rate * chain.backward[s], need_b) + due - room
        idle = max(late / chain.rate, 0.0)
        return chain.forward[s] + chain.backward[s] + idle, 0.0
    after = max((need_b + due - room) / chain.rate, 0.0)
    inner_due = max(due - (chain.backward[s] + after) * chain.rate, 0.0)
    row = span_cell(chain.output.size - 1, s + 1, t)
    inner = between(cost, row, room - chain.kept[s], inner_due)
    if inner == math.inf:
        return math.inf, 0.0
    left = max(inner_due - inner * chain.rate, 0.0)
    ahead = max((need_f + left - room) / chain.rate, 0.0)
    return chain.forward[s] + chain.backward[s] + after + ahead + inner, inner_due


@njit(cache=True)
def pass_to(
    cost: Seconds, chain: SpanChain, s: int, r: int, t: int, room: int, due: float
) -> tuple[float, float]:
    """Case 2: s..r are passed, then come r + 1 .. t, and s..r again. Its time, and what r + 1 .. t
    bring back."""
    if chain.pass_peak[s, r] + chain.beside[t] > room + CLOSE:
        return math.inf, 0.0
    length = chain.output.size - 1
    head = between(cost, span_cell(length, s, r), room, due)
    if head == math.inf:
        return math.inf, 0.0
    tail_due = max(due - head * chain.rate, 0.0)
    tail = between(cost, span_cell(length, r + 1, t), room - chain.output[r], tail_due)
    if tail == math.inf:
        return math.inf, 0.0
    left = max(tail_due - tail * chain.rate, 0.0)
    idle = max((chain.lag_peak[s, r] + chain.beside[t] + left - room) / chain.rate, 0.0)
    return chain.passes[r] - chain.passes[s - 1] + head + tail + idle, tail_due


@njit(cache=True)
def choose(
    cost: Seconds, chain: SpanChain, s: int, t: int, room: int, due: float
) -> tuple[int, float]:
    """The best split of a span (0: s keeps everything), and what comes back within the positions
    after it."""
    best, inner = run_once(cost, chain, s, t, room, due)
    split = 0
    for r in range(s, t):
        found, tail = pass_to(cost, chain, s, r, t, room, due)
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
def _try_split(best: Seconds, heads: Seconds, tails: Seconds, split: _Split, rate: float) -> None:
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
            if left > inner + CLOSE:
                continue
            low = int(left + CLOSE)
            share = left - low
            tail = tails[inner, low]
            if share > CLOSE:
                if low + 1 > inner:
                    continue
                tail = tail * (1 - share) + tails[inner, low + 1] * share
            found = begun + tail
            if found < best[room, due]:
                after = max(left - tail * rate, 0.0)
                found += max((lag + after - room) / rate, 0.0)
                best[room, due] = min(best[room, due], found)


@njit(cache=True)
def fill(cost: Seconds, chain: SpanChain) -> None:
    """Fills the table, shorter spans first."""
    length, width = chain.output.size - 1, cost.shape[1]
    for t in range(1, length + 1):
        for s in range(t, 0, -1):
            row = span_cell(length, s, t)
            for room in range(width):
                for due in range(room + 1):
                    cost[row, room, due], _ = run_once(cost, chain, s, t, room, float(due))
            for r in range(s, t):
                passed = chain.passes[r] - chain.passes[s - 1]
                need = chain.pass_peak[s, r] + chain.beside[t] - CLOSE
                lag = chain.lag_peak[s, r] + chain.beside[t]
                head_row, tail_row = span_cell(length, s, r), span_cell(length, r + 1, t)
                first = max(math.ceil(need), chain.output[r])
                if first < width:
                    split = _Split(
                        first, chain.output[r], passed, chain.once[t] - chain.once[r], lag
                    )
                    heads, tails = cost[head_row], cost[tail_row]
                    _try_split(cost[row], heads, tails, split, chain.rate)
