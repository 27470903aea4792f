"""When a sequence with transfers is through: the clocks of the computations and of both directions
of a link, compiled.

A transfer is one of two runs. One that `leaves` reads a storage: up to it the storage is there, and
computations wait until it has been sent. One that `comes` makes it again: from there on it is on
its way back. What comes back somewhere is sent when it is first made, in that order. To send it and
to bring it back each take their overhead of the computations.
`stages.combine.activation_offload.placement` has the clocks in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tightfit.schemas.link import HostLink
from tightfit.stages.combine.array_types import BoolArray, IntArray, PositionArray, SecondsArray
from tightfit.stages.combine.local_search.arrays import ProblemArrays
from tightfit.stages.combine.local_search.liveness import sum_view_seconds
from tightfit.stages.combine.local_search.njit import njit_internal, njit_no_refcount, reference_to
from tightfit.stages.combine.local_search.state import SearchState

COMPUTE, OFFLOAD, PREFETCH = range(3)


class StreamTiming(NamedTuple):
    """The transfers of a problem: the `kind` of each node and the `storage` that one of a transfer
    moves; of each storage the nodes by which it `leaves` and `comes`, -1 for none, and the
    `seconds` of a transfer with its `overhead`. The clocks have in `sent` and `back` when a storage
    is sent and back, and in `viewed` which of its views are there. A `shared` link moves one at a
    time; all that leaves is within the `room` in bytes."""

    kind: PositionArray
    storage: PositionArray
    leaves: PositionArray
    comes: PositionArray
    seconds: SecondsArray
    overhead: SecondsArray
    sent: SecondsArray
    back: SecondsArray
    viewed: IntArray
    shared: BoolArray
    room: SecondsArray


@njit_internal
def is_prefetched(s: SearchState, t: StreamTiming, storage: int) -> bool:
    """Whether a storage comes back somewhere."""
    return t.comes[storage] >= 0 and s.runs[t.comes[storage]] > 0


@njit_no_refcount
def finish_time(s: SearchState, a: ProblemArrays, t: StreamTiming) -> float:
    """When all streams are through; infinite where something comes back that did not leave, or what
    leaves takes more than the room that there is."""
    s, a, t = reference_to(s), reference_to(a), reference_to(t)
    clock = out = into = 0.0
    size = 0
    t.sent[:] = 0.0
    t.back[:] = 0.0
    t.viewed[:] = 0
    for slot in range(s.at.size):
        run = s.at[slot]
        if run < 0:
            continue
        node = s.node[run]
        if t.kind[node] == OFFLOAD:
            storage = t.storage[node]
            clock = max(clock, t.sent[storage], t.back[storage])
        elif t.kind[node] == PREFETCH:
            storage = t.storage[node]
            clock += t.overhead[storage]
            into = max(clock, into) if not t.shared[0] else max(clock, into, out)
            into += t.seconds[storage]
            t.back[storage] = into
            if t.shared[0]:
                out = into
        else:
            row = s.row[run]
            gone = viewing = 0.0
            event = s.event[run]
            for k in range(a.input_start[row], a.input_start[row + 1]):
                storage = a.input_item[k]
                if is_prefetched(s, t, storage):
                    clock = max(clock, t.back[storage])
                    after = s.after[event]
                    if after >= 0 and s.makes[after]:
                        if t.kind[s.node[s.owner[after]]] == PREFETCH:
                            return np.inf
                        gone = max(gone, t.sent[storage])
                new = a.input_views[k] & ~t.viewed[storage]
                if new:
                    viewing += sum_view_seconds(a, storage, new)
                    t.viewed[storage] |= new
                event += 1
            for k in range(a.output_start[row], a.output_start[row + 1]):
                t.viewed[a.output_item[k]] = 0
            clock += viewing + s.spent[run]
            if s.first[node] == run:
                for k in range(a.output_start[row], a.output_start[row + 1]):
                    storage = a.output_item[k]
                    if is_prefetched(s, t, storage):
                        size += a.size[storage]
                        clock += t.overhead[storage]
                        out = max(clock, out) if not t.shared[0] else max(clock, out, into)
                        out += t.seconds[storage]
                        t.sent[storage] = out
                        if t.shared[0]:
                            into = out
            clock = max(clock, gone)
    return max(clock, out, into) if size <= t.room[0] else np.inf


def build_stream_timing(
    nodes: int, sizes: Sequence[int], moved_storages: Sequence[int], link: HostLink
) -> StreamTiming:
    """The transfers over a link in a problem of so many nodes, whose storages have these bytes;
    those of the storage at place i of `moved_storages` are the nodes `nodes` + 2 i and the one
    behind."""
    storages = len(sizes)
    kind = np.zeros(nodes + 2 * len(moved_storages), np.int64)
    kind[nodes::2], kind[nodes + 1 :: 2] = OFFLOAD, PREFETCH
    moved = np.array(moved_storages, np.int64)
    storage = np.full(kind.size, -1, np.int64)
    storage[nodes::2] = storage[nodes + 1 :: 2] = moved
    leaves, comes = np.full(storages, -1, np.int64), np.full(storages, -1, np.int64)
    leaves[moved] = np.arange(nodes, kind.size, 2)
    comes[moved] = np.arange(nodes + 1, kind.size, 2)
    taken, overhead = np.zeros(storages), np.zeros(storages)
    taken[moved] = [link.seconds(sizes[each]) for each in moved_storages]
    overhead[moved] = [link.overhead_of(sizes[each]) for each in moved_storages]
    return StreamTiming(
        kind, storage, leaves, comes, taken, overhead, np.zeros(storages), np.zeros(storages),
        np.zeros(storages, np.int64), np.array([link.shared], np.bool_),
        np.array([link.room], np.float64),
    )  # fmt: skip
