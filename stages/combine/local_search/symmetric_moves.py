"""Moves in all equal places at once, as in all layers of a model: what saves bytes or time in one
of them does so in the others."""

from __future__ import annotations

from tightfit.stages.combine.local_search.arrays import ProblemArrays
from tightfit.stages.combine.local_search.moves import (
    can_recompute,
    draw_run,
    draw_uniform,
    drop_unread_runs,
    insert_chain,
    remove_cascade,
)
from tightfit.stages.combine.local_search.njit import njit_internal
from tightfit.stages.combine.local_search.state import JOURNAL_LENGTH, SearchState

MAX_SYMMETRIC_NODES = 16
"""Nodes of a kind above which such a move is made the less often: on average it takes no more
than so many others."""


@njit_internal
def skips_symmetric_move(s: SearchState, a: ProblemArrays, kind: int) -> bool:
    """Whether a move in all nodes of a kind is left out, as is drawn."""
    many = a.equal_start[kind + 1] - a.equal_start[kind]
    return bool(many > MAX_SYMMETRIC_NODES and draw_uniform(s) * many > MAX_SYMMETRIC_NODES)


@njit_internal
def is_equivalent_run(s: SearchState, a: ProblemArrays, run: int, other: int) -> bool:
    """Whether runs are of equal nodes, both the first ones or none of them."""
    node, like = s.node[run], s.node[other]
    return bool(a.kind[node] == a.kind[like] and (s.first[node] == run) == (s.first[like] == other))


@njit_internal
def is_recompute(s: SearchState, a: ProblemArrays, run: int) -> bool:
    """Whether a run is there beside the first one of its node."""
    node = s.node[run]
    return bool(s.first[node] != run or node >= a.nodes)


@njit_internal
def next_reader(s: SearchState, a: ProblemArrays, run: int) -> int:
    """The run that reads next what a run makes, -1 where nothing does."""
    row = s.row[run]
    event = s.event[run] + a.input_start[row + 1] - a.input_start[row]
    for _ in range(a.output_start[row], a.output_start[row + 1]):
        after = s.after[event]
        if after >= 0 and not s.makes[after]:
            return s.owner[after]
        event += 1
    return -1


@njit_internal
def draw_symmetric_recompute(s: SearchState, a: ProblemArrays) -> None:
    """Makes a storage again before a read of it, and each equal one before an equal read."""
    reader = draw_run(s, 0, s.at.size)
    if reader < 0:
        return
    row = s.row[reader]
    inputs = a.input_start[row + 1] - a.input_start[row]
    if inputs == 0:
        return
    storage = a.input_item[a.input_start[row] + int(draw_uniform(s) * inputs)]
    if not can_recompute(a, storage):
        return
    maker = a.again_item[a.again_start[storage]]
    if skips_symmetric_move(s, a, a.kind[maker]):
        return
    place = 0
    while a.output_item[a.output_start[maker] + place] != storage:
        place += 1
    for k in range(a.equal_start[a.kind[maker]], a.equal_start[a.kind[maker] + 1]):
        other = a.equal_item[k]
        event = s.head[a.output_item[a.output_start[other] + place]]
        while event >= 0 and (
            s.makes[event] or not is_equivalent_run(s, a, reader, s.owner[event])
        ):
            event = s.after[event]
        if event >= 0 and not s.makes[s.before[event]]:
            insert_chain(s, a, a.output_item[a.output_start[other] + place], s.owner[event])
    for k in range(0, s.figures[JOURNAL_LENGTH], 2):
        if s.slot[s.note[k]] >= 0:
            drop_unread_runs(s, a, s.note[k])


@njit_internal
def draw_symmetric_removal(s: SearchState, a: ProblemArrays) -> None:
    """Takes out a further run, and all equal ones that make something for equal reads."""
    run = draw_run(s, 0, s.at.size)
    if run < 0 or not is_recompute(s, a, run):
        return
    reader, kind = next_reader(s, a, run), a.kind[s.node[run]]
    if reader < 0 or skips_symmetric_move(s, a, kind):
        return
    for k in range(a.equal_start[kind], a.equal_start[kind + 1]):
        node = a.equal_item[k]
        for other in range(s.copies[node], s.copies[node + 1]):
            if s.slot[other] < 0 or not is_recompute(s, a, other):
                continue
            found = next_reader(s, a, other)
            if found >= 0 and is_equivalent_run(s, a, reader, found):
                remove_cascade(s, a, other)
