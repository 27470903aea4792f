"""The moves of the search: run again, run no more, run elsewhere.

Each notes what it did in the journal of the state, from which `undo` takes it back. A move that
cannot be made changes nothing and notes nothing.
"""

from __future__ import annotations

from tightfit.stages.combine.local_search.arrays import ProblemArrays
from tightfit.stages.combine.local_search.njit import njit_internal
from tightfit.stages.combine.local_search.state import (
    BUDGET,
    EXCESS,
    JOURNAL_LENGTH,
    RANDOM_STATE,
    RUN_COUNT,
    SearchState,
    event_before,
    free_run,
    insert_run,
    is_read,
    open_gap,
    remove_run,
)

RECOMPUTE_PROBABILITY = 0.6
"""How likely a missing input is made again too, rather than held."""
HOLD_PROBABILITY = 0.3
"""How often all missing inputs are held that are smaller than what is made again of them."""
DRAW_TRIES = 8
"""How often a place for a move is drawn before the move is given up."""


@njit_internal
def draw_uniform(s: SearchState) -> float:
    """A random number from 0 to 1."""
    s.figures[RANDOM_STATE] = s.figures[RANDOM_STATE] * 48271 % 2147483647
    return s.figures[RANDOM_STATE] / 2147483647.0


@njit_internal
def insert_and_log(s: SearchState, a: ProblemArrays, run: int, slot: int) -> None:
    """Puts a run into an empty slot and notes it."""
    insert_run(s, a, run, slot)
    noted = s.figures[JOURNAL_LENGTH]
    s.note[noted] = run
    s.note[noted + 1] = -1
    s.figures[JOURNAL_LENGTH] = noted + 2


@njit_internal
def remove_and_log(s: SearchState, a: ProblemArrays, run: int) -> None:
    """Takes a run out and notes it."""
    noted = s.figures[JOURNAL_LENGTH]
    s.note[noted] = run
    s.note[noted + 1] = s.slot[run]
    s.figures[JOURNAL_LENGTH] = noted + 2
    remove_run(s, a, run)


@njit_internal
def undo(s: SearchState, a: ProblemArrays) -> None:
    """Takes back all that is noted."""
    while s.figures[JOURNAL_LENGTH]:
        s.figures[JOURNAL_LENGTH] -= 2
        run, slot = s.note[s.figures[JOURNAL_LENGTH]], s.note[s.figures[JOURNAL_LENGTH] + 1]
        if slot < 0:
            remove_run(s, a, run)
        else:
            insert_run(s, a, run, slot)


@njit_internal
def is_needed(s: SearchState, a: ProblemArrays, run: int) -> bool:
    """Whether a run has to be there: by rule, or for what it makes."""
    node = s.node[run]
    if a.once[node] or (s.first[node] == run and (a.random[node] or a.lasting[node])):
        return True
    row = s.row[run]
    event = s.event[run] + a.input_start[row + 1] - a.input_start[row]
    for k in range(a.output_start[row], a.output_start[row + 1]):
        if is_read(s, a, a.output_item[k], s.after[event]):
            return True
        event += 1
    return False


@njit_internal
def remove_cascade(s: SearchState, a: ProblemArrays, run: int) -> None:
    """Takes a run out, and what only it needed."""
    top = 0
    s.stack[0] = run
    while top >= 0:
        gone = s.stack[top]
        top -= 1
        row, slot = s.row[gone], s.slot[gone]
        remove_and_log(s, a, gone)
        for k in range(a.input_start[row], a.input_start[row + 1]):
            event = event_before(s, a.input_item[k], slot)
            if event >= 0 and s.makes[event]:
                maker = s.owner[event]
                if not is_needed(s, a, maker):
                    pending = False
                    for i in range(top + 1):
                        pending = pending or s.stack[i] == maker
                    if not pending:
                        top += 1
                        s.stack[top] = maker


@njit_internal
def can_recompute(a: ProblemArrays, storage: int) -> bool:
    """Whether a storage can be made again."""
    return a.again_start[storage] < a.again_start[storage + 1]


@njit_internal
def draw_maker(s: SearchState, a: ProblemArrays, storage: int) -> int:
    """One of what makes a storage again; there must be some."""
    low, high = a.again_start[storage], a.again_start[storage + 1]
    if high - low > 1:
        low += int(draw_uniform(s) * (high - low))
    return a.again_item[low]


@njit_internal
def is_in_chain(s: SearchState, a: ProblemArrays, storage: int) -> bool:
    """Whether a storage is made by the chain that is being made."""
    for k in range(a.again_start[storage], a.again_start[storage + 1]):
        if s.planned[a.again_item[k]]:
            return True
    return False


@njit_internal
def moves_with_chain(s: SearchState, event: int) -> bool:
    """Whether all that reads a storage up to an event, since it was made, is to be made again."""
    while event >= 0 and not s.makes[event]:
        if not s.planned[s.node[s.owner[event]]]:
            return False
        event = s.before[event]
    return True


@njit_internal
def draw_chain(s: SearchState, a: ProblemArrays, storage: int, slot: int) -> int:
    """Fills `s.chain` with the nodes that make a storage again before a slot; returns how many they
    are, 0 where none may. Which of several ways is taken is drawn. Inputs that are missing there
    are made again too or held, as is drawn; one that is as large and was read for this alone moves
    there with it. The nodes are in graph order."""
    if not can_recompute(a, storage):
        return 0
    again = 0.0 if draw_uniform(s) < HOLD_PROBABILITY else RECOMPUTE_PROBABILITY
    maker = draw_maker(s, a, storage)
    count = 0
    waiting = 1
    s.chain[0] = maker
    s.planned[maker] = 1
    while count < waiting:
        row = s.chain[count] + a.once.size
        count += 1
        for k in range(a.input_start[row], a.input_start[row + 1]):
            source = a.input_item[k]
            if is_in_chain(s, a, source) or not can_recompute(a, source):
                continue
            before = event_before(s, source, slot)
            if is_read(s, a, source, s.after[before]):
                continue
            moves = a.size[source] >= a.size[storage] and moves_with_chain(s, before)
            if not moves and draw_uniform(s) > again:
                continue
            maker = draw_maker(s, a, source)
            s.planned[maker] = 1
            s.chain[waiting] = maker
            waiting += 1
    for i in range(count):
        node = s.chain[i]
        s.planned[node] = 0
        place = i
        while place > 0 and a.rank[s.chain[place - 1]] > a.rank[node]:
            s.chain[place] = s.chain[place - 1]
            place -= 1
        s.chain[place] = node
    return count


@njit_internal
def insert_chain(s: SearchState, a: ProblemArrays, storage: int, reader: int) -> int:
    """Puts what makes a storage again right before a run that reads it; returns how many runs."""
    count = draw_chain(s, a, storage, s.slot[reader])
    if count == 0 or s.figures[RUN_COUNT] + count + 2 > s.at.size:
        return 0
    for i in range(count):
        if free_run(s, s.chain[i]) < 0:
            return 0
    slot = open_gap(s, s.slot[reader], count) - count
    for i in range(count):
        insert_and_log(s, a, free_run(s, s.chain[i]), slot + i)
    return count


@njit_internal
def recompute_before(s: SearchState, a: ProblemArrays, storage: int, event: int) -> None:
    """Makes a storage again right before an event that reads it."""
    user = s.owner[event]
    count = insert_chain(s, a, storage, user)
    slot = s.slot[user] - count
    for i in range(count):
        drop_unread_runs(s, a, s.at[slot + i])


@njit_internal
def drop_unread_runs(s: SearchState, a: ProblemArrays, run: int) -> None:
    """Takes out the runs that made what a run makes again, where nothing reads it between."""
    row = s.row[run]
    event = s.event[run] + a.input_start[row + 1] - a.input_start[row]
    for _ in range(a.output_start[row], a.output_start[row + 1]):
        before = s.before[event]
        if before >= 0 and s.makes[before] and not is_needed(s, a, s.owner[before]):
            remove_cascade(s, a, s.owner[before])
        event += 1


@njit_internal
def draw_run(s: SearchState, low: int, high: int) -> int:
    """A run between two slots, -1 where none was met."""
    for _ in range(DRAW_TRIES):
        run = s.at[low + int(draw_uniform(s) * (high - low))]
        if run >= 0:
            return run
    return -1


@njit_internal
def draw_storage(s: SearchState, a: ProblemArrays) -> int:
    """A storage, as likely as `drawn` says."""
    low, high = 0, a.drawn.size - 1
    place = draw_uniform(s) * a.drawn[high]
    while low < high:
        middle = (low + high) // 2
        if a.drawn[middle] > place:
            high = middle
        else:
            low = middle + 1
    return low


@njit_internal
def draw_slot_over_budget(s: SearchState) -> int:
    """Half of the time a slot at which the line is above the budget, if it is anywhere; else -1."""
    over = -1
    if s.figures[EXCESS] > 0 and draw_uniform(s) < 0.5:
        slots = s.at.size
        over = int(draw_uniform(s) * slots)
        for _ in range(slots):
            if s.line[over] > s.figures[BUDGET]:
                break
            over = over + 1 if over + 1 < slots else 0
    return over


@njit_internal
def draw_recompute(s: SearchState, a: ProblemArrays) -> None:
    """Makes a storage that waits for a read again before it; half of the time one that waits
    while the line is above the budget."""
    slots = s.at.size
    over = draw_slot_over_budget(s)
    for _ in range(DRAW_TRIES):
        if over >= 0:
            storage = draw_storage(s, a)
            before = event_before(s, storage, over)
            if before < 0 or a.size[storage] == 0:
                continue
            event = s.after[before]
            if event < 0 or s.makes[event] or s.slot[s.owner[event]] == over:
                continue
        else:
            run = draw_run(s, 0, slots)
            if run < 0:
                continue
            row = s.row[run]
            start = a.input_start[row]
            inputs = a.input_start[row + 1] - start
            if inputs == 0:
                continue
            k = int(draw_uniform(s) * inputs)
            storage = a.input_item[start + k]
            event = s.event[run] + k
        if not can_recompute(a, storage):
            continue
        recompute_before(s, a, storage, event)
        return


@njit_internal
def draw_removal(s: SearchState, a: ProblemArrays) -> None:
    """Takes out a further run, so that what it makes is held from before."""
    for _ in range(2 * DRAW_TRIES):
        run = s.at[int(draw_uniform(s) * s.at.size)]
        if run >= 0 and (s.first[s.node[run]] != run or s.node[run] >= a.nodes):
            remove_cascade(s, a, run)
            return


@njit_internal
def draw_shift(s: SearchState, a: ProblemArrays) -> None:
    """Moves a run to another place that it may have: as far as it goes, or to any."""
    run = draw_run(s, 0, s.at.size)
    if run < 0:
        return
    node = s.node[run]
    if node == a.loss or (a.random[node] and s.first[node] == run):
        return
    low, high = allowed_slots(s, a, run)
    low, high = clamp_to_fixed_order(s, a, run, low, high)
    if high - low <= 2:
        return
    kind = draw_uniform(s)
    target = draw_slot(s, low, high, kind, 0.25)
    if s.figures[RUN_COUNT] + 3 <= s.at.size:
        move_run(s, a, run, target)


@njit_internal
def draw_slot(s: SearchState, low: int, high: int, kind: float, ends: float) -> int:
    """A slot after `low` up to `high`, each end as likely as `ends` says of a number `kind` from 0
    to 1."""
    target = low + 1 + int(draw_uniform(s) * (high - low - 1))
    if kind < ends:
        target = low + 1
    elif kind < 2 * ends:
        target = high
    return target


@njit_internal
def move_run(s: SearchState, a: ProblemArrays, run: int, target: int) -> None:
    """Moves a run to a slot, before what is there, and notes it; nothing where it lies there."""
    if target == s.slot[run]:
        return
    if s.at[target] >= 0:
        target = open_gap(s, target, 1) - 1
    remove_and_log(s, a, run)
    insert_and_log(s, a, run, target)


@njit_internal
def clamp_to_fixed_order(
    s: SearchState, a: ProblemArrays, run: int, low: int, high: int
) -> tuple[int, int]:
    """The slots between two, both excluded, in which a run that keeps its turn has it."""
    node = s.node[run]
    if s.first[node] == run:
        if a.earlier[node] >= 0:
            low = max(low, s.slot[s.first[a.earlier[node]]])
        if a.later[node] >= 0:
            high = min(high, s.slot[s.first[a.later[node]]])
    return low, high


@njit_internal
def allowed_slots(s: SearchState, a: ProblemArrays, run: int) -> tuple[int, int]:
    """The slots between which a run may lie, both excluded: after the makers of its inputs, before
    they are made again, between the events of what it makes, and on its side of the loss."""
    low, high = -1, s.at.size - 1
    loss = s.slot[s.first[a.loss]]
    if s.slot[run] < loss:
        high = loss
    else:
        low = loss
    row = s.row[run]
    event = s.event[run]
    for _ in range(a.input_start[row], a.input_start[row + 1]):
        before, after = s.before[event], s.after[event]
        while not s.makes[before]:
            before = s.before[before]
        while after >= 0 and not s.makes[after]:
            after = s.after[after]
        low = max(low, s.slot[s.owner[before]])
        if after >= 0:
            high = min(high, s.slot[s.owner[after]])
        event += 1
    for _ in range(a.output_start[row], a.output_start[row + 1]):
        before, after = s.before[event], s.after[event]
        if before >= 0:
            low = max(low, s.slot[s.owner[before]])
        if after >= 0:
            high = min(high, s.slot[s.owner[after]])
        event += 1
    return low, high
