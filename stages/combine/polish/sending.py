"""Search by small random moves for a sequence with transfers: as `anneal`, with the time at which
all lanes are through in place of the seconds of the runs, and with moves that send and bring back.
"""

from __future__ import annotations

import numpy as np

from tightfit.stages.combine.polish.anneal import (
    ADAPTED,
    QUICK,
    Pace,
    coming_back,
    first_price,
    is_better,
    next_price,
)
from tightfit.stages.combine.polish.arrays import Arrays, Positions
from tightfit.stages.combine.polish.lanes import COMES, COMPUTES, LEAVES, Lanes, through
from tightfit.stages.combine.polish.moves import (
    TRIES,
    carry_run,
    cascade,
    draw,
    draw_again,
    draw_over,
    draw_place,
    draw_removal,
    draw_shift,
    draw_storage,
    drop_idle,
    put,
    take,
    undo,
    window,
)
from tightfit.stages.combine.polish.state import (
    EXCESS,
    NOTED,
    USED,
    State,
    copy_sequence,
    event_before,
    free_copy,
    open_gap,
    state_of,
)
from tightfit.stages.combine.polish.uncounted import inlined, inner, uncounted


def anneal_linked(
    a: Arrays,
    t: Lanes,
    sequence: Positions,
    budget: int,
    moves: int,
    seed: int,
    pace: Pace = QUICK,
) -> Positions:
    """The sequence within the budget that is through first, of those met in a number of moves;
    where none was met, the one that exceeded the budget least. No move is made in all equal
    places."""
    best, price = sequence, 0.0
    count = moves // pace.epochs
    factor = coming_back(pace, count)
    for epoch in range(pace.epochs):
        warmth = pace.warmth * pace.cooling**epoch
        state = state_of(a, best, budget, seed * pace.epochs + epoch + 1)
        found = np.empty(state.at.size, np.int32)
        length, price = cool_linked(state, a, t, count, warmth, price * pace.relief, factor, found)
        best = found[:length]
    return best


@uncounted
def cool_linked(
    s: State,
    a: Arrays,
    t: Lanes,
    moves: int,
    warmth: float,
    price: float,
    factor: float,
    best: Positions,
) -> tuple[int, float]:
    """One epoch: fills `best` with the best sequence and returns its length and what a byte above
    the budget costs in the end."""
    own, excess = s.seconds[0], s.figures[EXCESS]
    seconds = through(s, a, t)
    mean = own / s.node.size
    price = first_price(a, mean, price)
    length = copy_sequence(s, best)
    best_seconds = seconds if excess == 0 else np.inf
    best_excess = excess
    inside = 0
    for move in range(moves):
        kind = draw(s)
        if kind < 0.2:
            draw_again(s, a)
        elif kind < 0.4:
            draw_bring(s, a, t)
        elif kind < 0.55:
            draw_removal(s, a)
        elif kind < 0.65:
            draw_stay(s, a, t)
        elif kind < 0.85:
            draw_shift(s, a)
        else:
            draw_transfer_shift(s, a, t)
        drop_leaves(s, a, t)
        if s.figures[NOTED]:
            limit = seconds - warmth * mean * np.log(draw(s)) - price * (s.figures[EXCESS] - excess)
            later = np.inf
            if s.seconds[0] <= limit:
                later = through(s, a, t)
            if later <= limit:
                s.figures[NOTED] = 0
                own, seconds, excess = s.seconds[0], later, s.figures[EXCESS]
                if is_better(excess, seconds, best_excess, best_seconds, mean):
                    length = copy_sequence(s, best)
                    best_excess = excess
                    best_seconds = seconds if excess == 0 else np.inf
            else:
                undo(s, a)
                s.seconds[0] = own
        inside += excess == 0
        if move % ADAPTED == ADAPTED - 1:
            price = next_price(price, factor, inside)
            inside = 0
    return length, price


@inlined
def ahead(s: State, low: int, high: int) -> int:
    """The first run from a random slot after `low` up to `high` on, at which there is one."""
    place = low + 1 + int(draw(s) * (high - low))
    while s.at[place] < 0:
        place += 1
    return s.at[place]


@inner
def draw_bring(s: State, a: Arrays, t: Lanes) -> None:
    """Lets a storage that waits for a read, or is made again for it, leave and come back instead;
    half of the time one that waits while the line is above the budget."""
    slots = s.at.size
    event, storage = -1, -1
    over = draw_over(s)
    if over >= 0:
        for _ in range(TRIES):
            storage = draw_storage(s, a)
            before = event_before(s, storage, over)
            if t.comes[storage] < 0 or before < 0:
                continue
            after = s.after[before]
            if after >= 0 and not s.makes[after] and s.slot[s.owner[after]] != over:
                event = after
                break
    else:
        for _ in range(TRIES):
            run = s.at[int(draw(s) * slots)]
            if run < 0 or t.kind[s.node[run]] != COMPUTES:
                continue
            start = a.input_start[s.row[run]]
            inputs = a.input_start[s.row[run] + 1] - start
            if inputs == 0:
                continue
            k = int(draw(s) * inputs)
            storage = a.input_item[start + k]
            if t.comes[storage] >= 0:
                event = s.event[run] + k
                break
    if event >= 0:
        bring(s, a, t, storage, event)


@inlined
def bring(s: State, a: Arrays, t: Lanes, storage: int, event: int) -> None:
    """Lets a storage leave after the event before another one and come back before that."""
    before = s.before[event]
    if before >= 0 and s.makes[before] and s.first[s.node[s.owner[before]]] != s.owner[before]:
        if t.kind[s.node[s.owner[before]]] != COMPUTES:
            return
        before = s.before[before]
    if before < 0 or t.kind[s.node[s.owner[event]]] != COMPUTES:
        return
    if t.kind[s.node[s.owner[before]]] == LEAVES:
        return
    comes, leaves = free_copy(s, t.comes[storage]), free_copy(s, t.leaves[storage])
    if comes < 0 or leaves < 0 or s.figures[USED] + 4 > s.at.size:
        return
    low, high = s.owner[before], s.owner[event]
    target = high
    if draw(s) < 0.7:
        target = ahead(s, s.slot[low], s.slot[high])
    put(s, a, comes, open_gap(s, s.slot[target], 1) - 1)
    target = ahead(s, s.slot[low], s.slot[comes])
    put(s, a, leaves, open_gap(s, s.slot[target], 1) - 1)
    drop_idle(s, a, comes)


@inlined
def draw_transfer(s: State, t: Lanes) -> int:
    """The first transfer from a random slot on, -1 where there is none."""
    place = int(draw(s) * s.at.size)
    for _ in range(s.at.size):
        run = s.at[place]
        if run >= 0 and t.kind[s.node[run]] != COMPUTES:
            return run
        place = place + 1 if place + 1 < s.at.size else 0
    return -1


@inner
def draw_stay(s: State, a: Arrays, t: Lanes) -> None:
    """Takes out a transfer with the one that belongs to it."""
    run = draw_transfer(s, t)
    if run < 0:
        return
    if t.kind[s.node[run]] == LEAVES:
        after = s.after[s.event[run]]
        take(s, a, run)
        if after < 0 or not s.makes[after]:
            return
        run = s.owner[after]
        if t.kind[s.node[run]] != COMES:
            return
    cascade(s, a, run)


@inner
def drop_leaves(s: State, a: Arrays, t: Lanes) -> None:
    """Takes out what let a storage leave that does not come back there any more."""
    for i in range(0, s.figures[NOTED], 2):
        run, slot = s.note[i], s.note[i + 1]
        if slot < 0 or t.kind[s.node[run]] != COMES or s.slot[run] >= 0:
            continue
        before = event_before(s, t.storage[s.node[run]], slot)
        if before >= 0 and t.kind[s.node[s.owner[before]]] == LEAVES:
            after = s.after[before]
            if after < 0 or not s.makes[after] or t.kind[s.node[s.owner[after]]] != COMES:
                take(s, a, s.owner[before])


@inner
def draw_transfer_shift(s: State, a: Arrays, t: Lanes) -> None:
    """Moves a transfer to another place that it may have."""
    run = draw_transfer(s, t)
    if run < 0 or s.figures[USED] + 3 > s.at.size:
        return
    low, high = window(s, a, run)
    if high - low <= 2:
        return
    kind = draw(s)
    target = draw_place(s, low, high, kind, 0.15)
    if 0.3 <= kind < 0.8:
        near = (high - low) // 16 + 4
        target = s.slot[run] - near + int(draw(s) * 2 * near)
        target = min(max(target, low + 1), high)
    carry_run(s, a, run, target)
