"""A graph with groups as single ops, in the form that every graph has."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from tightfit.schemas.graph.fused_groups import (
    GROUP_PREFIX,
    group_body_digest,
    serialize_group_body,
)
from tightfit.schemas.graph.op_arguments import decode_arguments, encode_arguments, renumber_values
from tightfit.schemas.graph.ownership import loss_interface_values
from tightfit.schemas.graph.training_graph import BASELINE_KINDS, NO_VALUE, Graph, Op
from tightfit.stages.fuse.group_ir import build_fusion_group
from tightfit.stages.fuse.group_ops import (
    FusionUnits,
    group_ops,
    is_groupable,
    is_inlined_view,
    ordered_pairs,
    phase_index,
)
from tightfit.stages.fuse.min_cut import min_cut_recomputes


def renumber_graph(graph: Graph, ops: Sequence[Op]) -> Graph:
    """The graph with `ops` in their order in place of its own. Values that none of them makes, and
    storages that are then empty, are gone; all ids count from 0."""
    made = {value for op in ops for value in op.outputs if value != NO_VALUE}
    kept = [at for at in graph.values if at.kind in BASELINE_KINDS or at.id in made]
    ids = {at.id: number for number, at in enumerate(kept)} | {NO_VALUE: NO_VALUE}
    storages = list(dict.fromkeys(at.storage for at in kept))
    places = {storage: number for number, storage in enumerate(storages)}
    return replace(
        graph,
        values=[replace(at, id=ids[at.id], storage=places[at.storage]) for at in kept],
        storages=[graph.storages[storage] for storage in storages],
        ops=[_renumber_op(op, number, ids) for number, op in enumerate(ops)],
        inputs=[ids[value] for value in graph.inputs],
        outputs=[replace(at, value=ids[at.value], tangent=ids[at.tangent]) for at in graph.outputs],
        gradients=[
            replace(at, value=ids[at.value], gradient=ids[at.gradient]) for at in graph.gradients
        ],
    )


def _renumber_op(op: Op, number: int, ids: dict[int, int]) -> Op:
    args, kwargs = renumber_values(decode_arguments(op.arguments), ids)
    return replace(
        op,
        id=number,
        arguments=encode_arguments(args, kwargs),
        inputs=[ids[value] for value in op.inputs],
        outputs=[ids[value] for value in op.outputs],
        writes=[ids[value] for value in op.writes],
        in_place=[ids[value] for value in op.in_place],
    )


def fuse(graph: Graph, refused: Collection[str] = ()) -> Graph:
    """The graph with its groups as ops `tightfit.group.d<digest>`; views that only groups read are
    gone, and so are the values and storages inside groups.

    Evaluated by ATen, call by call, it gives the bits of the graph. Random ops, ops that write
    and ops that run exactly once keep their order. Groups whose targets are `refused` stay single
    ops; a neighbor that they read may then have more outputs and another digest.
    """
    units = group_ops(graph)
    recomputed = min_cut_recomputes(graph)
    while True:
        made, kept = _build_groups(graph, units, recomputed)
        wrong = [unit for unit, op in made.items() if op.target in refused]
        if not wrong:
            rest = {unit: graph.ops[unit] for unit in units.members if unit in kept}
            return renumber_graph(graph, _topological_order(graph, units, made | rest))
        for unit in wrong:
            units.dissolve(unit)


def _build_groups(
    graph: Graph, units: FusionUnits, recomputed: set[int]
) -> tuple[dict[int, Op], set[int]]:
    """The ops of the groups by unit, and which ops stay as they are."""
    groups = {
        unit: at
        for unit, at in units.members.items()
        if len(at) > 1 or _recomputes_inside(graph, units, at[0], recomputed)
    }
    inside = {op for at in groups.values() for op in at}
    kept = _ungrouped_ops(graph, inside)
    read = _values_read_outside(graph, groups, kept, recomputed)
    made: dict[int, Op] = {}
    for unit, at in groups.items():
        wanted = [value for op in at for value in graph.ops[op].outputs if value in read]
        if wanted:
            made[unit] = _group_op(graph, at, wanted, recomputed)
    return made, kept


def _recomputes_inside(graph: Graph, units: FusionUnits, op: int, recomputed: set[int]) -> bool:
    """Whether an op of the backward that stands alone reads what is computed again inside."""
    at = graph.ops[op]
    if at.phase != "backward" or not is_groupable(graph, at) or op in units.dissolved:
        return False
    wanted = [value for value in at.outputs if value != NO_VALUE]
    return len(build_fusion_group(graph, [op], wanted, recomputed).body.calls) > 1 and bool(
        recomputed & set(_values_behind_views(graph, at))
    )


def _values_behind_views(graph: Graph, op: Op) -> list[int]:
    """The values that an op reads, and those that they are views of."""
    makers = graph.makers()
    found: list[int] = []
    pending = list(op.inputs)
    while pending:
        value = pending.pop()
        found.append(value)
        maker = makers.get(value)
        if maker is not None and is_inlined_view(graph, maker):
            pending += maker.inputs
    return found


def _caller_owned_values(graph: Graph) -> set[int]:
    """The values that the step hands out."""
    gradients = {value for at in graph.gradients for value in (at.value, at.gradient)}
    return loss_interface_values(graph) | gradients


def _ungrouped_ops(graph: Graph, inside: set[int]) -> set[int]:
    """The ops that stay as they are: those in no group, less the views that nobody else reads."""
    kept: set[int] = set()
    read = _caller_owned_values(graph)
    for op in reversed(graph.ops):
        if op.id in inside or (is_inlined_view(graph, op) and not read & set(op.outputs)):
            continue
        kept.add(op.id)
        read.update(op.inputs)
    return kept


def _values_read_outside(
    graph: Graph, groups: dict[int, list[int]], kept: set[int], recomputed: set[int]
) -> set[int]:
    """The values that ops outside groups, the caller or other groups read."""
    read = _caller_owned_values(graph) | {value for at in kept for value in graph.ops[at].inputs}
    for at in groups.values():
        wanted = [value for op in at for value in graph.ops[op].outputs if value != NO_VALUE]
        read.update(build_fusion_group(graph, at, wanted, recomputed).inputs)
    return read


def _group_op(graph: Graph, members: list[int], wanted: list[int], recomputed: set[int]) -> Op:
    group = build_fusion_group(graph, members, wanted, recomputed)
    text = serialize_group_body(group.body)
    last = graph.ops[members[-1]]
    return replace(
        last,
        target=GROUP_PREFIX + group_body_digest(text),
        arguments=encode_arguments([{"value": value} for value in group.inputs], {"body": text}),
        inputs=group.inputs,
        outputs=group.outputs,
        writes=[],
        in_place=[],
        random=False,
        repeatable=True,
        module=_common_module([graph.ops[at].module for at in members]),
    )


def _common_module(paths: list[str]) -> str:
    """The path of the submodule that holds all of these."""
    parts = zip(*(path.split(".") for path in paths), strict=False)
    same = itertools.takewhile(lambda names: len(set(names)) == 1, parts)
    return ".".join(names[0] for names in same)


def _topological_order(graph: Graph, units: FusionUnits, ops: dict[int, Op]) -> list[Op]:
    """The ops, by unit, each after what it waits for, else where its last member stood."""
    makers = {value: unit for unit, op in ops.items() for value in op.outputs if value != NO_VALUE}
    waits = {unit: {makers[at] for at in op.inputs if at in makers} for unit, op in ops.items()}
    for pair in ordered_pairs(graph):
        earlier, later = (units.unit[at] for at in pair)
        if earlier != later and earlier in ops and later in ops:
            waits[later].add(earlier)
    readers: dict[int, list[int]] = {unit: [] for unit in ops}
    for unit, others in waits.items():
        for other in others:
            readers[other].append(unit)

    def key(unit: int) -> tuple[int, int, int]:
        return phase_index(graph, units.members[unit]), units.members[unit][-1], unit

    ready = [key(unit) for unit in ops if not waits[unit]]
    heapq.heapify(ready)
    order = []
    while ready:
        unit = heapq.heappop(ready)[2]
        order.append(ops[unit])
        for reader in readers[unit]:
            waits[reader].discard(unit)
            if not waits[reader]:
                heapq.heappush(ready, key(reader))
    if len(order) != len(ops):
        raise AssertionError("the groups of the graph wait for one another")
    return order
