"""Which values of the forward the backward's groups compute again inside, instead of reading them.

What a group reads of the forward has to be kept until then. A pointwise value may be computed again
inside the group from what is smaller or kept anyway: a minimum cut of the forward says which values
to keep, so that their bytes are fewest (as min-cut rematerialisation of PyTorch's AOTAutograd).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import networkx as nx

from tightfit.schemas.graph.fused_groups import is_pointwise
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.fuse.group_ops import is_groupable, is_inlined_view

_SOURCE, _SINK = "source", "sink"


def min_cut_recomputes(graph: Graph) -> set[int]:
    """The values of the forward that groups of the backward compute again inside."""
    makers = graph.makers()
    network = nx.DiGraph()
    kept = _resident_storages(graph)
    wanted = list(_values_read_by_groups(graph))
    pending, seen = list(wanted), set(wanted)
    while pending:
        value = pending.pop()
        maker = makers.get(value)
        network.add_edge(
            (value, "in"), (value, "out"), capacity=_storage_cost(graph, maker, value, kept)
        )
        if maker is None or not _is_recomputable(graph, maker):
            network.add_edge(_SOURCE, (value, "in"), capacity=math.inf)
            continue
        if not maker.inputs:
            network.add_edge(_SOURCE, (value, "in"), capacity=0)
        for given in maker.inputs:
            network.add_edge((given, "out"), (value, "in"), capacity=math.inf)
            if given not in seen:
                seen.add(given)
                pending.append(given)
    for value in wanted:
        network.add_edge((value, "out"), _SINK, capacity=math.inf)
    if _SOURCE not in network or _SINK not in network:
        return set()
    _, (_, behind) = nx.minimum_cut(network, _SOURCE, _SINK)
    return {value for value in seen if (value, "in") in behind and value in makers}


def _values_read_by_groups(graph: Graph) -> Iterator[int]:
    """The values of the forward that groupable ops of the backward read, views too."""
    makers = graph.makers()
    found: dict[int, None] = {}
    for op in graph.ops:
        if op.phase == "backward" and is_groupable(graph, op):
            pending = list(op.inputs)
            while pending:
                value = pending.pop()
                maker = makers.get(value)
                if maker is None or maker.phase == "forward":
                    found[value] = None
                elif is_inlined_view(graph, maker):
                    pending += maker.inputs
    yield from found


def _is_recomputable(graph: Graph, op: Op) -> bool:
    """Whether a group may compute an op of the forward again."""
    if op.phase != "forward":
        return False
    return is_inlined_view(graph, op) or (is_pointwise(op.target) and is_groupable(graph, op))


def _resident_storages(graph: Graph) -> set[int]:
    """The storages that stay until the backward whatever its groups read: fixed ones, what the
    caller holds, and what ops of the backward read that are in no group."""
    storage = {value.id: value.storage for value in graph.values}
    found = set(graph.baseline_storages())
    found |= {storage[value] for value in graph.caller_owned_values()}
    for op in graph.ops:
        plain = not is_groupable(graph, op) and not is_inlined_view(graph, op)
        if op.phase == "backward" and plain:
            found |= {storage[value] for value in op.inputs if value != NO_VALUE}
    return found


def _storage_cost(graph: Graph, maker: Op | None, value: int, kept: set[int]) -> float:
    """What keeping a value takes; a view is kept by keeping what it is a view of."""
    storage = graph.values[value].storage
    if storage in kept:
        return 0
    if maker is not None and is_inlined_view(graph, maker):
        return math.inf
    return graph.storages[storage]
