"""Search by small random moves: what is faster or nearer to the budget stays, what is neither stays
now and then, less and less often."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tightfit.stages.combine.array_types import PositionArray
from tightfit.stages.combine.local_search.arrays import ProblemArrays
from tightfit.stages.combine.local_search.moves import (
    DRAW_TRIES,
    allowed_slots,
    draw_recompute,
    draw_removal,
    draw_shift,
    draw_slot,
    draw_slot_over_budget,
    draw_storage,
    draw_uniform,
    drop_unread_runs,
    insert_and_log,
    move_run,
    remove_and_log,
    remove_cascade,
    undo,
)
from tightfit.stages.combine.local_search.njit import njit_internal, njit_no_refcount, reference_to
from tightfit.stages.combine.local_search.state import (
    EXCESS,
    JOURNAL_LENGTH,
    RUN_COUNT,
    SearchState,
    build_state,
    copy_sequence,
    event_before,
    free_run,
    open_gap,
)
from tightfit.stages.combine.local_search.stream_timing import (
    COMPUTE,
    OFFLOAD,
    PREFETCH,
    StreamTiming,
    finish_time,
)
from tightfit.stages.combine.local_search.symmetric_moves import (
    draw_symmetric_recompute,
    draw_symmetric_removal,
)

FEASIBLE_SHARE = 0.3
"""How much of the search should be within the budget: what a byte above it costs follows that."""
PRICE_INTERVAL = 64
"""After how many moves it does."""


class AnnealingSchedule(NamedTuple):
    """How a search spends its moves. It goes on from the best sequence so far for `epochs`. A step
    may lose `warmth` at first, as a part of the mean time of an op, and of that `cooling` is left
    from epoch to epoch. An epoch starts with the part `relief` of what a byte above the budget cost
    at the end of the one before, and that changes by `factor` each time it is adapted, or by more
    where it could not come back to what it was within a third of the epoch. The part `equal` of the
    moves is made in all equal places at once."""

    epochs: int
    temperature: float
    cooling: float
    price_relief: float
    factor: float
    equal: float


FAST = AnnealingSchedule(
    epochs=8, temperature=0.08, cooling=0.7, price_relief=1.0, factor=1.1, equal=0.02
)
"""For many searches of few moves each."""
SLOW = AnnealingSchedule(
    epochs=4, temperature=0.5, cooling=0.4, price_relief=0.03, factor=1.015, equal=0.0
)
"""For more moves: each epoch lets go of the budget and comes back to it slowly, so that what saves
the most time for its bytes is kept and what saves the least is given up, in all places at once."""

OFFLOAD_WIDE = AnnealingSchedule(
    epochs=4, temperature=2.0, cooling=0.4, price_relief=0.01, factor=1.005, equal=0.0
)
OFFLOAD_FINE = AnnealingSchedule(
    epochs=4, temperature=1.0, cooling=0.4, price_relief=0.1, factor=1.005, equal=0.0
)
"""For sequences with transfers: one that lets go of more, and one that goes on from what that
found."""


def anneal(
    a: ProblemArrays,
    sequence: PositionArray,
    budget: int,
    moves: int,
    seed: int,
    pace: AnnealingSchedule = FAST,
    timing: StreamTiming | None = None,
) -> PositionArray:
    """The fastest sequence within the budget met in a number of moves, where each run takes the
    faster form that it may; where none was met, the one that exceeded the budget least. With the
    `timing` of transfers it is the one that is through first, and no move is made in all equal
    places."""
    best, price = sequence, 0.0
    count = moves // pace.epochs
    factor = price_growth(pace, count)
    for epoch in range(pace.epochs):
        warmth = pace.temperature * pace.cooling**epoch
        state = build_state(a, best, budget, seed * pace.epochs + epoch + 1)
        found = np.empty(state.at.size, np.int64)
        length, price = anneal_epoch(
            state, a, timing, count, warmth, price * pace.price_relief, factor, pace.equal, found
        )
        best = found[:length]
    return best


def price_growth(pace: AnnealingSchedule, moves: int) -> float:
    """By what the cost of a byte above the budget changes in an epoch of so many moves."""
    return max(pace.factor, pace.price_relief ** (-3 * PRICE_INTERVAL / max(moves, PRICE_INTERVAL)))


@njit_internal
def initial_price(a: ProblemArrays, mean: float, price: float) -> float:
    """What a byte above the budget costs at first, where ops take a `mean` time: the price, where
    that is not 0, else little."""
    if price == 0.0:
        price = mean
        for size in a.size:
            price = min(price, mean / (size + 1))
    return price


@njit_internal
def adapt_price(price: float, factor: float, inside: int) -> float:
    """What it costs after so many of the last sequences were within the budget."""
    return price / factor if inside > FEASIBLE_SHARE * PRICE_INTERVAL else price * factor


@njit_internal
def is_better(
    excess: int, seconds: float, best_excess: int, best_seconds: float, mean: float
) -> bool:
    """Whether a sequence exceeds the budget by less than the best one, or is within it and
    faster."""
    return excess < best_excess or (excess == 0 and seconds < best_seconds - 1e-9 * mean)


@njit_no_refcount
def anneal_epoch(
    s: SearchState,
    a: ProblemArrays,
    t: StreamTiming | None,
    moves: int,
    warmth: float,
    price: float,
    factor: float,
    equal: float,
    best: PositionArray,
) -> tuple[int, float]:
    """One epoch: fills `best` with the best sequence and returns its length and what a byte above
    the budget costs in the end; 0 lets it begin with little. Without transfers (`t` is None) it is
    compiled without what they need."""
    s, a = reference_to(s), reference_to(a)
    streams: Any = reference_to(t)
    own, excess = s.seconds[0], s.figures[EXCESS]
    seconds = own
    if t is not None:
        seconds = finish_time(s, a, streams)
    mean = own / s.node.size
    price = initial_price(a, mean, price)
    length = copy_sequence(s, best)
    best_seconds = seconds if excess == 0 else np.inf
    best_excess = excess
    inside = 0
    for move in range(moves):
        kind = draw_uniform(s)
        if t is None:
            if kind < equal:
                if draw_uniform(s) < 0.5:
                    draw_symmetric_recompute(s, a)
                else:
                    draw_symmetric_removal(s, a)
            elif kind < 0.4:
                draw_recompute(s, a)
            elif kind < 0.8:
                draw_removal(s, a)
            else:
                draw_shift(s, a)
        else:
            if kind < 0.2:
                draw_recompute(s, a)
            elif kind < 0.4:
                draw_offload(s, a, streams)
            elif kind < 0.55:
                draw_removal(s, a)
            elif kind < 0.65:
                draw_offload_removal(s, a, streams)
            elif kind < 0.85:
                draw_shift(s, a)
            else:
                draw_transfer_shift(s, a, streams)
            drop_unused_offloads(s, a, streams)
        if s.figures[JOURNAL_LENGTH]:
            later, accepted = s.seconds[0], False
            penalty = price * (s.figures[EXCESS] - excess)
            if t is None:
                more = later - seconds + penalty
                accepted = more <= 0 or more < -warmth * mean * np.log(draw_uniform(s))
            else:
                limit = seconds - warmth * mean * np.log(draw_uniform(s)) - penalty
                if later <= limit:
                    later = finish_time(s, a, streams)
                    accepted = later <= limit
            if accepted:
                s.figures[JOURNAL_LENGTH] = 0
                own, seconds, excess = s.seconds[0], later, s.figures[EXCESS]
                if is_better(excess, seconds, best_excess, best_seconds, mean):
                    length = copy_sequence(s, best)
                    best_excess = excess
                    best_seconds = seconds if excess == 0 else np.inf
            else:
                undo(s, a)
                s.seconds[0] = own
        inside += excess == 0
        if move % PRICE_INTERVAL == PRICE_INTERVAL - 1:
            price = adapt_price(price, factor, inside)
            inside = 0
    return length, price


@njit_internal
def draw_run_after(s: SearchState, low: int, high: int) -> int:
    """The first run from a random slot after `low` up to `high` on, at which there is one."""
    place = low + 1 + int(draw_uniform(s) * (high - low))
    while s.at[place] < 0:
        place += 1
    return s.at[place]


@njit_internal
def draw_offload(s: SearchState, a: ProblemArrays, t: StreamTiming) -> None:
    """Lets a storage that waits for a read, or is made again for it, leave and come back instead;
    half of the time one that waits while the line is above the budget."""
    slots = s.at.size
    event, storage = -1, -1
    over = draw_slot_over_budget(s)
    if over >= 0:
        for _ in range(DRAW_TRIES):
            storage = draw_storage(s, a)
            before = event_before(s, storage, over)
            if t.comes[storage] < 0 or before < 0:
                continue
            after = s.after[before]
            if after >= 0 and not s.makes[after] and s.slot[s.owner[after]] != over:
                event = after
                break
    else:
        for _ in range(DRAW_TRIES):
            run = s.at[int(draw_uniform(s) * slots)]
            if run < 0 or t.kind[s.node[run]] != COMPUTE:
                continue
            start = a.input_start[s.row[run]]
            inputs = a.input_start[s.row[run] + 1] - start
            if inputs == 0:
                continue
            k = int(draw_uniform(s) * inputs)
            storage = a.input_item[start + k]
            if t.comes[storage] >= 0:
                event = s.event[run] + k
                break
    if event >= 0:
        insert_offload(s, a, t, storage, event)


@njit_internal
def insert_offload(
    s: SearchState, a: ProblemArrays, t: StreamTiming, storage: int, event: int
) -> None:
    """Lets a storage leave after the event before another one and come back before that."""
    before = s.before[event]
    if before >= 0 and s.makes[before] and s.first[s.node[s.owner[before]]] != s.owner[before]:
        if t.kind[s.node[s.owner[before]]] != COMPUTE:
            return
        before = s.before[before]
    if before < 0 or t.kind[s.node[s.owner[event]]] != COMPUTE:
        return
    if t.kind[s.node[s.owner[before]]] == OFFLOAD:
        return
    comes, leaves = free_run(s, t.comes[storage]), free_run(s, t.leaves[storage])
    if comes < 0 or leaves < 0 or s.figures[RUN_COUNT] + 4 > s.at.size:
        return
    low, high = s.owner[before], s.owner[event]
    target = high
    if draw_uniform(s) < 0.7:
        target = draw_run_after(s, s.slot[low], s.slot[high])
    insert_and_log(s, a, comes, open_gap(s, s.slot[target], 1) - 1)
    target = draw_run_after(s, s.slot[low], s.slot[comes])
    insert_and_log(s, a, leaves, open_gap(s, s.slot[target], 1) - 1)
    drop_unread_runs(s, a, comes)


@njit_internal
def draw_transfer(s: SearchState, t: StreamTiming) -> int:
    """The first transfer from a random slot on, -1 where there is none."""
    place = int(draw_uniform(s) * s.at.size)
    for _ in range(s.at.size):
        run = s.at[place]
        if run >= 0 and t.kind[s.node[run]] != COMPUTE:
            return run
        place = place + 1 if place + 1 < s.at.size else 0
    return -1


@njit_internal
def draw_offload_removal(s: SearchState, a: ProblemArrays, t: StreamTiming) -> None:
    """Takes out a transfer with the one that belongs to it."""
    run = draw_transfer(s, t)
    if run < 0:
        return
    if t.kind[s.node[run]] == OFFLOAD:
        after = s.after[s.event[run]]
        remove_and_log(s, a, run)
        if after < 0 or not s.makes[after]:
            return
        run = s.owner[after]
        if t.kind[s.node[run]] != PREFETCH:
            return
    remove_cascade(s, a, run)


@njit_internal
def drop_unused_offloads(s: SearchState, a: ProblemArrays, t: StreamTiming) -> None:
    """Takes out what let a storage leave that does not come back there any more."""
    for i in range(0, s.figures[JOURNAL_LENGTH], 2):
        run, slot = s.note[i], s.note[i + 1]
        if slot < 0 or t.kind[s.node[run]] != PREFETCH or s.slot[run] >= 0:
            continue
        before = event_before(s, t.storage[s.node[run]], slot)
        if before >= 0 and t.kind[s.node[s.owner[before]]] == OFFLOAD:
            after = s.after[before]
            if after < 0 or not s.makes[after] or t.kind[s.node[s.owner[after]]] != PREFETCH:
                remove_and_log(s, a, s.owner[before])


@njit_internal
def draw_transfer_shift(s: SearchState, a: ProblemArrays, t: StreamTiming) -> None:
    """Moves a transfer to another place that it may have."""
    run = draw_transfer(s, t)
    if run < 0 or s.figures[RUN_COUNT] + 3 > s.at.size:
        return
    low, high = allowed_slots(s, a, run)
    if high - low <= 2:
        return
    kind = draw_uniform(s)
    target = draw_slot(s, low, high, kind, 0.15)
    if 0.3 <= kind < 0.8:
        near = (high - low) // 16 + 4
        target = s.slot[run] - near + int(draw_uniform(s) * 2 * near)
        target = min(max(target, low + 1), high)
    move_run(s, a, run, target)
