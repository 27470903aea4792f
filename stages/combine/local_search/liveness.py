"""The memory line of a sequence, compiled.

A sequence is an array of node positions, first runs and recomputations alike. Storages live as
`stages.simulate.liveness` says, of which `step_liveness_back` and `memory_timeline` are the
compiled twins: each ends right after its last use before it is made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from tightfit.stages.combine.array_types import BoolArray, IntArray, PositionArray
from tightfit.stages.combine.local_search.arrays import ProblemArrays
from tightfit.stages.combine.local_search.njit import njit_internal

if TYPE_CHECKING:
    from tightfit.stages.combine.local_search.state import SearchState


@njit(cache=True, nogil=True)
def execution_rows(a: ProblemArrays, sequence: PositionArray, length: int) -> PositionArray:
    """The row of each execution: its node's, or that of the node's further runs."""
    nodes = a.once.size
    seen = np.zeros(nodes, np.bool_)
    rows = np.empty(length, np.int64)
    for i in range(length):
        node = sequence[i]
        rows[i] = node + nodes if seen[node] else node
        seen[node] = True
    return rows


@njit(cache=True, nogil=True)
def step_liveness_back(a: ProblemArrays, row: int, used: BoolArray) -> int:
    """Turns what is used after an execution into what is used from it on; returns the bytes that
    are gone after it."""
    freed = 0
    for k in range(a.output_start[row], a.output_start[row + 1]):
        storage = a.output_item[k]
        if not used[storage]:
            freed += a.size[storage]
        used[storage] = False
    for k in range(a.input_start[row], a.input_start[row + 1]):
        storage = a.input_item[k]
        if not used[storage]:
            freed += a.size[storage]
        used[storage] = True
    return freed


@njit_internal
def sum_view_seconds(a: ProblemArrays, storage: int, bits: int) -> float:
    """The seconds of some of the views of a storage."""
    seconds = 0.0
    place = a.view_start[storage]
    while bits:
        if bits & 1:
            seconds += a.view_seconds[place]
        bits >>= 1
        place += 1
    return seconds


@njit(cache=True, nogil=True)
def memory_timeline(
    a: ProblemArrays, sequence: PositionArray, length: int, ceiling: int, line: IntArray
) -> tuple[int, float]:
    """Fills `line[:length]` with the peak within each execution, in bytes; returns the largest and
    the seconds of all executions and of what they view. `ceiling` decides where they run in place,
    as in `line`."""
    nodes = a.once.size
    rows = execution_rows(a, sequence, length)
    freed = np.zeros(length, np.int64)
    reuse = np.full(length, -1, np.int64)
    used = a.stays.copy()
    runs = np.zeros(nodes, np.int64)
    for i in range(length - 1, -1, -1):
        row = rows[i]
        runs[sequence[i]] += 1
        for k in range(a.reuse_start[row], a.reuse_start[row + 1]):
            if not used[a.reuse_item[k]]:
                reuse[i] = k
                break
        freed[i] = step_liveness_back(a, row, used)
    live = 0
    largest = 0
    seconds = 0.0
    viewed = np.zeros(a.size.size, np.int64)
    runs_left = runs.copy()
    for i in range(length):
        node = sequence[i]
        row = rows[i]
        state = 0
        if a.random[node] and runs[node] > 1:
            if runs_left[node] == runs[node]:
                live += a.state_bytes
            else:
                state = a.state_bytes
        runs_left[node] -= 1
        before = live + state
        for k in range(a.input_start[row], a.input_start[row + 1]):
            storage = a.input_item[k]
            seconds += sum_view_seconds(a, storage, a.input_views[k] & ~viewed[storage])
            viewed[storage] |= a.input_views[k]
        for k in range(a.output_start[row], a.output_start[row + 1]):
            live += a.size[a.output_item[k]]
            if not a.brings[node]:
                viewed[a.output_item[k]] = 0
        line[i] = max(before + a.peak[row], live)
        k = reuse[i]
        if k >= 0 and (a.reuse_seconds[k] <= a.seconds[row] or line[i] > ceiling):
            line[i] = max(before + a.reuse_peak[k], live - a.size[a.reuse_item[k]])
            seconds += a.reuse_seconds[k]
        else:
            seconds += a.seconds[row]
        live -= freed[i]
        if a.random[node] and runs[node] > 1 and runs_left[node] == 0:
            live -= a.state_bytes
        largest = max(largest, line[i])
    return largest, seconds


@njit_internal
def view_bits_of_event(s: SearchState, a: ProblemArrays, event: int) -> int:
    """The views that an event reads, as bits."""
    run = s.owner[event]
    return a.input_views[a.input_start[s.row[run]] + event - s.event[run]]


@njit_internal
def starts_view_lifetime(s: SearchState, a: ProblemArrays, event: int) -> bool:
    """Whether an event makes a storage whose views are to be made, too."""
    return s.makes[event] and not a.brings[s.node[s.owner[event]]]


@njit_internal
def event_view_seconds(s: SearchState, a: ProblemArrays, storage: int, event: int) -> float:
    """The seconds of the views that are made for an event alone: those that it reads and no other
    read of that life does; where it makes the storage, those that are read before and after it.
    None are for one that brings the storage back."""
    if s.makes[event] and not starts_view_lifetime(s, a, event):
        return 0.0
    earlier, later = 0, 0
    other = s.before[event]
    while other >= 0 and not starts_view_lifetime(s, a, other):
        if not s.makes[other]:
            earlier |= view_bits_of_event(s, a, other)
        other = s.before[other]
    other = s.after[event]
    while other >= 0 and not starts_view_lifetime(s, a, other):
        if not s.makes[other]:
            later |= view_bits_of_event(s, a, other)
        other = s.after[other]
    if s.makes[event]:
        return sum_view_seconds(a, storage, earlier & later)
    return sum_view_seconds(a, storage, view_bits_of_event(s, a, event) & ~(earlier | later))
