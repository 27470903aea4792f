"""Simulates the forward and backward that a set of saved values of a joint graph gives.

The order is that in which AOTAutograd's partitioner runs them
(`torch._functorch.partitioners.reordering_to_mimic_autograd_engine`): what is recomputed comes just
ahead of the first operator of the backward that needs it. A storage is live from the operator that
makes it to the last one that reads it or a view of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class JointArrays(NamedTuple):
    """A joint graph as arrays. Nodes are numbered in its order, and so are storages.

    Attributes:
        input_starts: Where in `inputs` those of each node start, and the end; int64[nodes + 1].
        inputs: The nodes that each node reads.
        storage_starts: Where in `storages` those of each node start; int64[nodes + 1].
        storages: The storages that a node's value lies in: one, or several of a tuple.
        storage_bytes: Bytes of each storage, 0 of one that is there before the step.
        is_forward: Nodes that do not depend on a gradient; bool[nodes].
        is_input: Placeholders; bool[nodes].
        is_item: Nodes that take an item of a tuple; bool[nodes].
        never_again: Nodes that must not be recomputed: random ones, and those that read what the
            forward overwrites; bool[nodes].
        seconds: Estimated time of each node; float64[nodes].
        workspace: Bytes that each node takes beside its value while it runs; int64[nodes].
        forward_outputs: Nodes that the forward returns to its caller.
        backward_outputs: Nodes that the backward returns: gradients.
        tangents: Placeholders of the gradients of outputs.
        backward_start: The first node that reads a tangent.
        tangents_stay: Whether the tangents are not freed before the backward ends.
    """

    input_starts: NDArray[np.int64]
    inputs: NDArray[np.int64]
    storage_starts: NDArray[np.int64]
    storages: NDArray[np.int64]
    storage_bytes: NDArray[np.int64]
    is_forward: NDArray[np.bool_]
    is_input: NDArray[np.bool_]
    is_item: NDArray[np.bool_]
    never_again: NDArray[np.bool_]
    seconds: NDArray[np.float64]
    workspace: NDArray[np.int64]
    forward_outputs: NDArray[np.int64]
    backward_outputs: NDArray[np.int64]
    tangents: NDArray[np.int64]
    backward_start: int
    tangents_stay: bool


@njit(cache=True, nogil=True)
def simulate_partition(
    graph: JointArrays, saved: NDArray[np.bool_], between: int
) -> tuple[int, int, int, float, int]:
    """The peaks of the step and of its backward, the bytes at the end of the forward, the time, and
    how many nodes are recomputed that must not be.

    Args:
        graph: The joint graph.
        saved: Nodes that the forward saves; those that the backward does not read are not.
        between: Bytes that a loss takes between forward and backward beside outputs and saved
            values, with the gradients of the outputs.

    Returns:
        Bytes at most, at most in the backward, and at the end of the forward, without parameters
        and inputs; seconds of forward and backward; the number of nodes that are recomputed though
        they must not be.
    """
    in_backward, kept, wrong = backward_nodes(graph, saved)
    in_forward = _forward_nodes(graph, kept)
    seconds = 0.0
    for node in range(len(saved)):
        if not graph.is_input[node]:
            seconds += graph.seconds[node] * (in_forward[node] + in_backward[node])
    nothing = np.zeros(len(graph.storage_bytes), np.bool_)
    stay = kept.copy()
    stay[graph.forward_outputs] = True
    order = np.flatnonzero(in_forward)
    forward_peak = _peak_of(graph, order, nothing, nothing, stay, 0)
    returned, alive, held = nothing.copy(), nothing.copy(), nothing
    _mark_storages(graph, returned, graph.forward_outputs)
    _mark_storages(graph, alive, np.flatnonzero(kept))
    at_end = _mark_storages(graph, held, np.flatnonzero(stay))
    tangent_bytes = _mark_storages(graph, alive, graph.tangents)
    stay[:] = False
    stay[graph.backward_outputs] = True
    order = _backward_order(graph, in_backward)
    if graph.tangents_stay:
        _mark_storages(graph, returned, graph.tangents)
    backward_peak = _peak_of(graph, order, alive, returned & alive, stay, at_end + tangent_bytes)
    peak = max(backward_peak, forward_peak, at_end + max(between, tangent_bytes))
    return peak, backward_peak, at_end, seconds, wrong


@njit(cache=True, nogil=True)
def backward_nodes(
    graph: JointArrays, saved: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], int]:
    """The nodes that the backward runs, the values that it reads of the saved ones, and how many of
    its nodes must not be recomputed."""
    count = len(saved)
    needed = np.zeros(count, np.bool_)
    kept = np.zeros(count, np.bool_)
    needed[graph.backward_outputs] = True
    wrong = 0
    for node in range(count - 1, -1, -1):
        if not needed[node]:
            continue
        if graph.is_input[node] or (saved[node] and graph.is_forward[node]):
            kept[node] = not graph.is_input[node]
            needed[node] = False
            continue
        if graph.is_forward[node] and graph.never_again[node]:
            wrong += 1
        for at in range(graph.input_starts[node], graph.input_starts[node + 1]):
            needed[graph.inputs[at]] = True
    return needed, kept, wrong


@njit(cache=True, nogil=True)
def _forward_nodes(graph: JointArrays, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The nodes that the forward runs."""
    needed = kept.copy()
    needed[graph.forward_outputs] = True
    for node in range(len(kept) - 1, -1, -1):
        if needed[node]:
            for at in range(graph.input_starts[node], graph.input_starts[node + 1]):
                needed[graph.inputs[at]] = True
    for node in range(len(kept)):
        needed[node] &= not graph.is_input[node]
    return needed


@njit(cache=True, nogil=True)
def _backward_order(graph: JointArrays, needed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The order in which the backward runs its nodes."""
    order = np.empty(needed.sum(), np.int64)
    stack = np.empty(len(graph.inputs) + 1, np.int64)
    waiting = needed.copy()
    count = 0
    ends = len(needed) + len(graph.backward_outputs)
    for turn in range(graph.backward_start, ends):
        node = turn if turn < len(needed) else graph.backward_outputs[turn - len(needed)]
        if not waiting[node]:
            continue
        first, depth = count, 1
        stack[0] = node
        waiting[node] = False
        while depth:
            depth -= 1
            found = stack[depth]
            order[count] = found
            count += 1
            for at in range(graph.input_starts[found], graph.input_starts[found + 1]):
                if waiting[graph.inputs[at]]:
                    waiting[graph.inputs[at]] = False
                    stack[depth] = graph.inputs[at]
                    depth += 1
        if count - first > 1:
            order[first:count].sort()
    return order[:count]


@njit(cache=True, nogil=True)
def _mark_storages(graph: JointArrays, held: NDArray[np.bool_], nodes: NDArray[np.int64]) -> int:
    """Marks the storages of some nodes as held; the bytes of those that were not."""
    total = 0
    for node in nodes:
        for at in range(graph.storage_starts[node], graph.storage_starts[node + 1]):
            storage = graph.storages[at]
            if not held[storage]:
                held[storage] = True
                total += graph.storage_bytes[storage]
    return total


@njit(cache=True, nogil=True)
def _peak_of(
    graph: JointArrays,
    order: NDArray[np.int64],
    alive_before: NDArray[np.bool_],
    outside: NDArray[np.bool_],
    stay: NDArray[np.bool_],
    live: int,
) -> int:
    """The peak of a run of nodes that starts with `live` bytes in the storages `alive_before`;
    those of `outside`, and of nodes that `stay`, are not freed."""
    end = len(order)
    last_use = np.full(len(stay), -1, np.int64)
    death = np.full(len(graph.storage_bytes), -1, np.int64)
    for turn in range(end):
        node = order[turn]
        last_use[node] = max(last_use[node], turn)
        for at in range(graph.input_starts[node], graph.input_starts[node + 1]):
            if not graph.is_item[node]:
                last_use[graph.inputs[at]] = turn
    for node in range(len(stay)):
        if stay[node]:
            last_use[node] = end
        for at in range(graph.storage_starts[node], graph.storage_starts[node + 1]):
            death[graph.storages[at]] = max(death[graph.storages[at]], last_use[node])
    alive = alive_before.copy()
    peak = live
    for turn in range(end):
        node = order[turn]
        live += _mark_storages(graph, alive, order[turn : turn + 1])
        peak = max(peak, live + graph.workspace[node])
        live -= _free_storages(graph, node, turn, death, alive, outside)
        for at in range(graph.input_starts[node], graph.input_starts[node + 1]):
            live -= _free_storages(graph, graph.inputs[at], turn, death, alive, outside)
    return peak


@njit(cache=True, nogil=True)
def _free_storages(
    graph: JointArrays,
    node: int,
    turn: int,
    death: NDArray[np.int64],
    alive: NDArray[np.bool_],
    outside: NDArray[np.bool_],
) -> int:
    """Frees the storages of a node that are read for the last time now; their bytes."""
    total = 0
    for at in range(graph.storage_starts[node], graph.storage_starts[node + 1]):
        storage = graph.storages[at]
        if death[storage] == turn and alive[storage] and not outside[storage]:
            alive[storage] = False
            total += graph.storage_bytes[storage]
    return total
