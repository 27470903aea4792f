"""The inner loops of the search over sequences, compiled: the memory line, insertions, removals.

A sequence is an array of node positions, first runs and recomputations alike. Storages live as
`stages.replay.line` says, of which `step_back` and `memory_line` are the compiled twins: each ends
right after its last use before it is made again, so that removing a recomputation keeps the earlier
instance and inserting one lets the earlier instance go.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.combine.polish.arrays import Arrays, Flags, Integers, Positions


@njit(cache=True, nogil=True)
def rows_of(a: Arrays, sequence: Positions, length: int) -> Positions:
    """The row of each execution: its node's, or that of the node's further runs."""
    nodes = a.fixed_run.size
    seen = np.zeros(nodes, np.bool_)
    rows = np.empty(length, np.int32)
    for i in range(length):
        node = sequence[i]
        rows[i] = node + nodes if seen[node] else node
        seen[node] = True
    return rows


@njit(cache=True, nogil=True)
def step_back(a: Arrays, row: int, used: Flags) -> int:
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


@njit(cache=True, nogil=True)
def memory_line(
    a: Arrays, sequence: Positions, length: int, room: int, line: Integers
) -> tuple[int, float]:
    """Fills `line[:length]` with the peak within each execution, in bytes; returns the largest and
    the seconds of all executions. `room` decides where they run in place, as in `line`."""
    nodes = a.fixed_run.size
    rows = rows_of(a, sequence, length)
    freed = np.zeros(length, np.int64)
    reuse = np.full(length, -1, np.int32)
    used = a.stays.copy()
    runs = np.zeros(nodes, np.int32)
    for i in range(length - 1, -1, -1):
        row = rows[i]
        runs[sequence[i]] += 1
        for k in range(a.reuse_start[row], a.reuse_start[row + 1]):
            if not used[a.reuse_item[k]]:
                reuse[i] = k
                break
        freed[i] = step_back(a, row, used)
    live = 0
    largest = 0
    seconds = 0.0
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
        for k in range(a.output_start[row], a.output_start[row + 1]):
            live += a.size[a.output_item[k]]
        line[i] = max(before + a.peak[row], live)
        k = reuse[i]
        if k >= 0 and (a.reuse_seconds[k] <= a.seconds[row] or line[i] > room):
            line[i] = max(before + a.reuse_peak[k], live - a.size[a.reuse_item[k]])
            seconds += a.reuse_seconds[k]
        else:
            seconds += a.seconds[row]
        live -= freed[i]
        if a.random[node] and runs[node] > 1 and runs_left[node] == 0:
            live -= a.state_bytes
        largest = max(largest, line[i])
    return largest, seconds


@njit(cache=True, nogil=True)
def excess(line: Integers, length: int, budget: int) -> float:
    """The bytes above the budget, summed over the executions."""
    total = 0.0
    for i in range(length):
        if line[i] > budget:
            total += line[i] - budget
    return total


@njit(cache=True, nogil=True)
def live_before(a: Arrays, rows: Positions, length: int, position: int) -> Flags:
    """Which storages are there before `position` and used at or after it; `rows` are those of the
    executions."""
    used = a.stays.copy()
    for i in range(length - 1, position - 1, -1):
        step_back(a, rows[i], used)
    made = np.zeros(used.size, np.bool_)
    for i in range(position):
        for k in range(a.output_start[rows[i]], a.output_start[rows[i] + 1]):
            made[a.output_item[k]] = True
    return used & made


@njit(cache=True, nogil=True)
def insertion(a: Arrays, live: Flags, storage: int, depth: int, chain: Positions) -> int:
    """Fills `chain` with the nodes that make `storage` again and returns how many they are.

    Inputs that are not live are made again too, down to `depth` levels; those below are left to
    be held from their earlier instance. Returns 0 when a node of the chain may not run again.
    """
    nodes = a.fixed_run.size
    planned = np.zeros(nodes, np.bool_)
    stack_node = np.empty(nodes + 1, np.int32)
    stack_next = np.empty(nodes + 1, np.int32)
    first = a.producer[storage]
    if first < 0 or a.fixed_run[first] or not a.remade[storage]:
        return 0
    count = 0
    top = 0
    stack_node[0] = first
    stack_next[0] = a.input_start[first + nodes]
    planned[first] = True
    while top >= 0:
        node = stack_node[top]
        k = stack_next[top]
        if k == a.input_start[node + nodes + 1]:
            chain[count] = node
            count += 1
            top -= 1
            continue
        stack_next[top] += 1
        source = a.input_item[k]
        maker = a.producer[source]
        if live[source] or maker < 0 or planned[maker] or top + 1 > depth or a.fixed_run[maker]:
            continue
        if not a.remade[source]:
            continue
        planned[maker] = True
        top += 1
        stack_node[top] = maker
        stack_next[top] = a.input_start[maker + nodes]
    return count


@njit(cache=True, nogil=True)
def prune(a: Arrays, sequence: Positions, length: int) -> int:
    """Removes executions that nothing needs, in place; returns the new length.

    An execution is needed when it runs exactly once by rule, draws random numbers for the first
    time, or makes a storage that is used before it is made again.
    """
    used = a.stays.copy()
    rows = rows_of(a, sequence, length)
    runs = np.zeros(a.fixed_run.size, np.int32)
    for i in range(length):
        runs[sequence[i]] += 1
    keep = np.ones(length, np.bool_)
    for i in range(length - 1, -1, -1):
        node = sequence[i]
        row = rows[i]
        needed = a.fixed_run[node] or (a.random[node] and runs[node] == 1)
        for k in range(a.output_start[row], a.output_start[row + 1]):
            needed = needed or used[a.output_item[k]]
        if not needed:
            keep[i] = False
            runs[node] -= 1
            continue
        step_back(a, row, used)
    count = 0
    for i in range(length):
        if keep[i]:
            sequence[count] = sequence[i]
            count += 1
    return count


@njit(cache=True, nogil=True)
def window(
    a: Arrays,
    sequence: Positions,
    rows: Positions,
    length: int,
    position: int,
    mark: Positions,
    stamp: int,
) -> tuple[int, int]:
    """The positions to which one execution may move, both included.

    It stays after the last making of its inputs and before the first use or remaking of its
    outputs, and on its side of the loss; random nodes and nodes that run exactly once keep their
    places. `mark` is room by storage that holds neither `stamp` nor `stamp + 1`.
    """
    node = sequence[position]
    if a.fixed_run[node] or a.random[node]:
        return position, position
    own = rows[position]
    for k in range(a.input_start[own], a.input_start[own + 1]):
        mark[a.input_item[k]] = stamp
    for k in range(a.output_start[own], a.output_start[own + 1]):
        mark[a.output_item[k]] = stamp + 1
    low = position
    while low > 0 and not _blocks(a, sequence[low - 1], rows[low - 1], node, mark, stamp):
        low -= 1
    high = position
    while high + 1 < length and not _blocks(
        a, sequence[high + 1], rows[high + 1], node, mark, stamp
    ):
        high += 1
    return low, high


@njit(cache=True, nogil=True)
def _blocks(a: Arrays, other: int, row: int, node: int, mark: Positions, stamp: int) -> bool:
    """Whether an execution may not change places with one of `node`, whose inputs and outputs are
    marked."""
    if other == node or other == a.loss:
        return True
    for k in range(a.output_start[row], a.output_start[row + 1]):
        if mark[a.output_item[k]] == stamp:
            return True
    for k in range(a.input_start[row], a.input_start[row + 1]):
        if mark[a.input_item[k]] == stamp + 1:
            return True
    return False


@njit(cache=True, nogil=True)
def moved(sequence: Positions, length: int, source: int, target: int, out: Positions) -> None:
    """Copies the sequence with one execution taken from `source` and put at `target`."""
    node = sequence[source]
    if source < target:
        out[:source] = sequence[:source]
        out[source:target] = sequence[source + 1 : target + 1]
        out[target + 1 : length] = sequence[target + 1 : length]
    else:
        out[:target] = sequence[:target]
        out[target + 1 : source + 1] = sequence[target:source]
        out[source + 1 : length] = sequence[source + 1 : length]
    out[target] = node
