"""A sequence with its memory line, kept up to date as runs are put in and taken out.

Runs lie in slots with gaps between them, and each storage has a list of its events, which are the
runs that make or read it, in order. A storage is there from one event to the next where that one
reads it, and to the end where it stays and no event follows (`stages.simulate.liveness`). A run put
in or taken out therefore changes the line only between its own slot and those of its neighbors in
the lists. The line is that of `memory_timeline` in which runs overwrite what they can; their
seconds are those of the faster of both forms, and of the views that are made for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tightfit.stages.combine.array_types import BoolArray, IntArray, PositionArray, SecondsArray
from tightfit.stages.combine.local_search.arrays import ProblemArrays
from tightfit.stages.combine.local_search.liveness import event_view_seconds
from tightfit.stages.combine.local_search.njit import njit_internal, njit_no_refcount, reference_to

EMPTY_SLOT_BYTES = 1 << 60
"""What the line lacks where a slot is empty, so that no empty slot is above a budget."""
SPARE_RUNS = 2
"""A node may run this many times more than in the sequence that a state is made of."""
EXCESS, BUDGET, RUN_COUNT, JOURNAL_LENGTH, RANDOM_STATE = range(5)
"""Places in the `figures` of a state."""


class SearchState(NamedTuple):
    """Runs by number, those of node v from `copies[v]` on; `slot` is -1 for one that is not there.

    `line` has by slot the bytes before its run and, unless it is empty (`at` is -1), those of
    `own`, which a run adds. The events of a run are numbered from `event[run]` on, first what it
    reads, then what it makes; `before` and `after` link those of one storage from `head` to `tail`.
    `figures` are the bytes above the budget, summed over the runs, the budget, the number of runs
    that are there, the length of the journal (`note`), and the last random number.
    """

    line: IntArray
    at: PositionArray
    slot: PositionArray
    node: PositionArray
    row: PositionArray
    own: IntArray
    spent: SecondsArray
    copies: PositionArray
    first: PositionArray
    runs: PositionArray
    event: PositionArray
    owner: PositionArray
    makes: BoolArray
    before: PositionArray
    after: PositionArray
    head: PositionArray
    tail: PositionArray
    note: PositionArray
    chain: PositionArray
    stack: PositionArray
    planned: PositionArray
    figures: IntArray
    seconds: SecondsArray


def build_state(a: ProblemArrays, sequence: PositionArray, budget: int, seed: int) -> SearchState:
    """The state of a sequence of positions of nodes, with room for further runs."""
    nodes, storages = a.once.size, a.size.size
    counts = np.bincount(sequence, minlength=nodes) + np.where(a.once, 0, SPARE_RUNS)
    copies = _start_offsets(counts)
    node = np.repeat(np.arange(nodes), counts).astype(np.int64)
    widths = np.diff(a.input_start) + np.diff(a.output_start)
    events = _start_offsets(np.maximum(widths[:nodes], widths[nodes:])[node])
    runs, slots = int(copies[-1]), len(sequence) + nodes // 2 + 64

    def places(size: int) -> PositionArray:
        return np.full(size, -1, np.int64)

    state = SearchState(
        line=np.full(slots, -EMPTY_SLOT_BYTES, np.int64),
        at=places(slots),
        slot=places(runs),
        node=node,
        row=places(runs),
        own=np.full(runs, -EMPTY_SLOT_BYTES, np.int64),
        spent=np.zeros(runs),
        copies=copies,
        first=places(nodes),
        runs=np.zeros(nodes, np.int64),
        event=events,
        owner=np.repeat(np.arange(runs), np.diff(events)).astype(np.int64),
        makes=np.zeros(int(events[-1]), np.bool_),
        before=places(int(events[-1])),
        after=places(int(events[-1])),
        head=places(storages),
        tail=places(storages),
        note=np.zeros(4 * runs + 16, np.int64),
        chain=places(nodes + 1),
        stack=places(nodes + runs + 16),
        planned=np.zeros(nodes, np.int64),
        figures=np.array([0, budget, 0, 0, seed], np.int64),
        seconds=np.zeros(1),
    )
    spread_runs(state, a, sequence)
    return state


def _start_offsets(counts: IntArray) -> PositionArray:
    start = np.zeros(len(counts) + 1, np.int64)
    start[1:] = np.cumsum(counts)
    return start


@njit_no_refcount
def spread_runs(s: SearchState, a: ProblemArrays, sequence: PositionArray) -> None:
    """Puts a sequence into an empty state, with gaps between the runs."""
    s, a = reference_to(s), reference_to(a)
    gaps = s.at.size - 1
    for i in range(sequence.size):
        insert_run(s, a, free_run(s, sequence[i]), i * gaps // sequence.size)


@njit_no_refcount
def copy_sequence(s: SearchState, out: PositionArray) -> int:
    """Fills `out` with the nodes of the runs, in order; returns how many they are."""
    s = reference_to(s)
    count = 0
    for slot in range(s.at.size):
        if s.at[slot] >= 0:
            out[count] = s.node[s.at[slot]]
            count += 1
    return count


@njit_internal
def free_run(s: SearchState, node: int) -> int:
    """A run of a node that is not there, -1 where all are."""
    for run in range(s.copies[node], s.copies[node + 1]):
        if s.slot[run] < 0:
            return run
    return -1


@njit_internal
def add_bytes(line: IntArray, figures: IntArray, low: int, high: int, amount: int) -> None:
    """Adds bytes to the line of all slots after `low` up to `high`."""
    part = line[low + 1 : high + 1]
    budget = figures[BUDGET]
    change = 0
    for i in range(part.size):
        over = part[i] - budget
        part[i] += amount
        change += max(over + amount, 0) - max(over, 0)
    figures[EXCESS] += change


@njit_internal
def event_before(s: SearchState, storage: int, slot: int) -> int:
    """The last event of a storage before a slot, -1 where there is none."""
    event = s.tail[storage]
    while event >= 0 and s.slot[s.owner[event]] >= slot:
        event = s.before[event]
    return event


@njit_internal
def is_read(s: SearchState, a: ProblemArrays, storage: int, event: int) -> bool:
    """Whether an event, -1 for the end, is a read."""
    return not s.makes[event] if event >= 0 else a.stays[storage]


@njit_internal
def update_lifetime(
    s: SearchState, a: ProblemArrays, storage: int, event: int, before: int, after: int, sign: int
) -> None:
    """Changes the line for an event between two others: it comes (`sign` 1) or goes (-1)."""
    size = a.size[storage] * sign
    here = s.slot[s.owner[event]]
    if is_read(s, a, storage, after):
        if before < 0:
            last = s.slot[s.owner[after]] if after >= 0 else s.at.size - 1
            add_bytes(s.line, s.figures, here, last, size)
        elif s.makes[event]:
            add_bytes(s.line, s.figures, s.slot[s.owner[before]], here, -size)
    elif before >= 0 and not s.makes[event]:
        add_bytes(s.line, s.figures, s.slot[s.owner[before]], here, size)


@njit_internal
def link_event(s: SearchState, a: ProblemArrays, event: int, storage: int, making: bool) -> None:
    """Puts an event of a run into the list of its storage."""
    before = event_before(s, storage, s.slot[s.owner[event]])
    after = s.after[before] if before >= 0 else s.head[storage]
    s.makes[event] = making
    s.before[event] = before
    s.after[event] = after
    if before >= 0:
        s.after[before] = event
    else:
        s.head[storage] = event
    if after >= 0:
        s.before[after] = event
    else:
        s.tail[storage] = event
    update_lifetime(s, a, storage, event, before, after, 1)
    if a.view_start[storage] < a.view_start[storage + 1]:
        s.seconds[0] += event_view_seconds(s, a, storage, event)
    update_run_of_event(s, a, before)


@njit_internal
def unlink_event(s: SearchState, a: ProblemArrays, event: int, storage: int) -> None:
    """Takes an event out of the list of its storage."""
    before, after = s.before[event], s.after[event]
    if a.view_start[storage] < a.view_start[storage + 1]:
        s.seconds[0] -= event_view_seconds(s, a, storage, event)
    if before >= 0:
        s.after[before] = after
    else:
        s.head[storage] = after
    if after >= 0:
        s.before[after] = before
    else:
        s.tail[storage] = before
    update_lifetime(s, a, storage, event, before, after, -1)
    update_run_of_event(s, a, before)


@njit_internal
def update_run_of_event(s: SearchState, a: ProblemArrays, event: int) -> None:
    """Settles the run of an event, -1 for none, after which another one came or went."""
    if event >= 0 and not s.makes[event]:
        run = s.owner[event]
        if a.reuse_start[s.row[run]] < a.reuse_start[s.row[run] + 1]:
            update_run(s, a, run)


@njit_internal
def update_run(s: SearchState, a: ProblemArrays, run: int) -> None:
    """Brings up to date what a run adds to line and seconds: its form depends on what ends with
    it, and its random state on whether it is the only one."""
    row, node = s.row[run], s.node[run]
    made = 0
    for k in range(a.output_start[row], a.output_start[row + 1]):
        made += a.size[a.output_item[k]]
    saved = 0
    restored = 0
    if a.random[node] and s.runs[node] > 1:
        if s.first[node] == run:
            saved = a.state_bytes
        else:
            restored = a.state_bytes
    own = saved + max(restored + a.peak[row], made)
    spent = a.seconds[row]
    for k in range(a.reuse_start[row], a.reuse_start[row + 1]):
        storage = a.reuse_item[k]
        if not is_read(s, a, storage, s.after[s.event[run] + a.reuse_input[k]]):
            own = saved + max(restored + a.reuse_peak[k], made - a.size[storage])
            spent = min(spent, a.reuse_seconds[k])
            break
    s.seconds[0] += spent - s.spent[run]
    s.spent[run] = spent
    if own != s.own[run]:
        slot = s.slot[run]
        add_bytes(s.line, s.figures, slot - 1, slot, own - s.own[run])
        s.own[run] = own


@njit_internal
def add_random_state_bytes(s: SearchState, a: ProblemArrays, node: int, sign: int) -> None:
    """Adds (`sign` 1) or takes off (-1) the random state of a node, from its first to its last
    run."""
    if not a.random[node] or s.runs[node] < 2:
        return
    last = 0
    for run in range(s.copies[node], s.copies[node + 1]):
        last = max(last, s.slot[run])
    add_bytes(s.line, s.figures, s.slot[s.first[node]], last, sign * a.state_bytes)


@njit_internal
def insert_run(s: SearchState, a: ProblemArrays, run: int, slot: int) -> None:
    """Puts a run into an empty slot."""
    node = s.node[run]
    add_random_state_bytes(s, a, node, -1)
    s.slot[run] = slot
    s.at[slot] = run
    first = s.first[node]
    s.runs[node] += 1
    s.figures[RUN_COUNT] += 1
    if s.runs[node] == 1 or slot < s.slot[first]:
        s.first[node] = run
    row = node if s.first[node] == run else node + a.once.size
    s.row[run] = row
    event = s.event[run]
    for k in range(a.input_start[row], a.input_start[row + 1]):
        link_event(s, a, event, a.input_item[k], False)
        event += 1
    for k in range(a.output_start[row], a.output_start[row + 1]):
        link_event(s, a, event, a.output_item[k], True)
        event += 1
    update_run(s, a, run)
    if a.random[node]:
        add_random_state_bytes(s, a, node, 1)
        update_run(s, a, s.first[node])


@njit_internal
def remove_run(s: SearchState, a: ProblemArrays, run: int) -> None:
    """Takes a run out; its slot is empty then."""
    node, row, slot = s.node[run], s.row[run], s.slot[run]
    add_random_state_bytes(s, a, node, -1)
    event = s.event[run]
    for k in range(a.input_start[row], a.input_start[row + 1]):
        unlink_event(s, a, event, a.input_item[k])
        event += 1
    for k in range(a.output_start[row], a.output_start[row + 1]):
        unlink_event(s, a, event, a.output_item[k])
        event += 1
    add_bytes(s.line, s.figures, slot - 1, slot, -EMPTY_SLOT_BYTES - s.own[run])
    s.seconds[0] -= s.spent[run]
    s.own[run] = -EMPTY_SLOT_BYTES
    s.spent[run] = 0.0
    s.slot[run] = -1
    s.at[slot] = -1
    s.runs[node] -= 1
    s.figures[RUN_COUNT] -= 1
    if s.first[node] == run and s.runs[node]:
        s.first[node] = earliest_run(s, node)
    if a.random[node] and s.runs[node]:
        add_random_state_bytes(s, a, node, 1)
        update_run(s, a, s.first[node])


@njit_internal
def earliest_run(s: SearchState, node: int) -> int:
    """The first run of a node that is there."""
    found = -1
    for run in range(s.copies[node], s.copies[node + 1]):
        if s.slot[run] >= 0 and (found < 0 or s.slot[run] < s.slot[found]):
            found = run
    return found


@njit_internal
def open_gap(s: SearchState, slot: int, count: int) -> int:
    """Makes `count` slots before one empty by moving the runs around them; returns where that one
    is then. There must be so many empty slots, and one further."""
    free = 0
    while free < count and slot > free and s.at[slot - free - 1] < 0:
        free += 1
    low = slot - free - 1
    high = slot
    while free < count:
        while low >= 0 and s.at[low] >= 0:
            low -= 1
        while high < s.at.size - 1 and s.at[high] >= 0:
            high += 1
        ends = high == s.at.size - 1
        if low >= 0 and (ends or slot - free - low <= high - slot):
            for place in range(low, slot - free - 1):
                shift_run(s, place + 1, place)
        else:
            for place in range(high, slot, -1):
                shift_run(s, place - 1, place)
            slot += 1
        free += 1
    return slot


@njit_internal
def shift_run(s: SearchState, source: int, target: int) -> None:
    """Moves a run into the empty slot beside its own."""
    run = s.at[source]
    line = s.line[source]
    if target > source:
        left = line - s.own[run]
    else:
        other = s.at[source + 1]
        left = s.line[source + 1] - (s.own[other] if other >= 0 else -EMPTY_SLOT_BYTES)
    s.line[target] = line
    s.line[source] = left - EMPTY_SLOT_BYTES
    s.at[target] = run
    s.at[source] = -1
    s.slot[run] = target
