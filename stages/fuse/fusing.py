"""A graph with groups as single ops, in the form that every graph has."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection
from dataclasses import replace

from tightfit.schemas.arguments import encode_arguments
from tightfit.schemas.graph import NONE, Graph, Op
from tightfit.schemas.groups import GROUP_PREFIX, body_digest, body_text
from tightfit.schemas.held import loss_values
from tightfit.stages.fuse.bodies import body_for
from tightfit.stages.fuse.grouping import (
    Units,
    group_ops,
    is_groupable,
    is_replayed,
    ordered_pairs,
    phase_of,
)
from tightfit.stages.fuse.renumbering import renumbered
from tightfit.stages.fuse.saving import computed_again


def fuse(graph: Graph, refused: Collection[str] = ()) -> Graph:
    """The graph with its groups as ops `tightfit.group.d<digest>`; views that only groups read are
    gone, and so are the values and storages inside groups.

    Evaluated by ATen, call by call, it gives the bits of the graph. Random ops, ops that write
    and ops that run exactly once keep their order. Groups whose targets are `refused` stay single
    ops; a neighbour that they read may then have more outputs and another digest.
    """
    units = group_ops(graph)
    recomputed = computed_again(graph)
    while True:
        made, kept = _grouped(graph, units, recomputed)
        wrong = [unit for unit, op in made.items() if op.target in refused]
        if not wrong:
            rest = {unit: graph.ops[unit] for unit in units.members if unit in kept}
            return renumbered(graph, _in_order(graph, units, made | rest))
        for unit in wrong:
            units.dissolve(unit)


def _grouped(graph: Graph, units: Units, recomputed: set[int]) -> tuple[dict[int, Op], set[int]]:
    """The ops of the groups by unit, and which ops stay as they are."""
    groups = {
        unit: at
        for unit, at in units.members.items()
        if len(at) > 1 or _reads_again(graph, units, at[0], recomputed)
    }
    inside = {op for at in groups.values() for op in at}
    kept = _kept_ops(graph, inside)
    read = _read_outside(graph, groups, kept, recomputed)
    made: dict[int, Op] = {}
    for unit, at in groups.items():
        wanted = [value for op in at for value in graph.ops[op].outputs if value in read]
        if wanted:
            made[unit] = _group_op(graph, at, wanted, recomputed)
    return made, kept


def _reads_again(graph: Graph, units: Units, op: int, recomputed: set[int]) -> bool:
    """Whether an op of the backward that stands alone reads what is computed again inside."""
    at = graph.ops[op]
    if at.phase != "backward" or not is_groupable(graph, at) or op in units.dissolved:
        return False
    wanted = [value for value in at.outputs if value != NONE]
    return len(body_for(graph, [op], wanted, recomputed).body.calls) > 1 and bool(
        recomputed & set(_behind(graph, at))
    )


def _behind(graph: Graph, op: Op) -> list[int]:
    """The values that an op reads, and those that they are views of."""
    makers = graph.makers()
    found: list[int] = []
    pending = list(op.inputs)
    while pending:
        value = pending.pop()
        found.append(value)
        maker = makers.get(value)
        if maker is not None and is_replayed(graph, maker):
            pending += maker.inputs
    return found


def _held(graph: Graph) -> set[int]:
    """The values that the step hands out."""
    gradients = {value for at in graph.gradients for value in (at.value, at.gradient)}
    return loss_values(graph) | gradients


def _kept_ops(graph: Graph, inside: set[int]) -> set[int]:
    """The ops that stay as they are: those in no group, less the views that nobody else reads."""
    kept: set[int] = set()
    read = _held(graph)
    for op in reversed(graph.ops):
        if op.id in inside or (is_replayed(graph, op) and not read & set(op.outputs)):
            continue
        kept.add(op.id)
        read.update(op.inputs)
    return kept


def _read_outside(
    graph: Graph, groups: dict[int, list[int]], kept: set[int], recomputed: set[int]
) -> set[int]:
    """The values that ops outside groups, the caller or other groups read."""
    read = _held(graph) | {value for at in kept for value in graph.ops[at].inputs}
    for at in groups.values():
        wanted = [value for op in at for value in graph.ops[op].outputs if value != NONE]
        read.update(body_for(graph, at, wanted, recomputed).inputs)
    return read


def _group_op(graph: Graph, members: list[int], wanted: list[int], recomputed: set[int]) -> Op:
    group = body_for(graph, members, wanted, recomputed)
    text = body_text(group.body)
    last = graph.ops[members[-1]]
    return replace(
        last,
        target=GROUP_PREFIX + body_digest(text),
        arguments=encode_arguments([{"value": value} for value in group.inputs], {"body": text}),
        inputs=group.inputs,
        outputs=group.outputs,
        writes=[],
        in_place=[],
        random=False,
        repeatable=True,
        module=_common([graph.ops[at].module for at in members]),
    )


def _common(paths: list[str]) -> str:
    """The path of the submodule that holds all of these."""
    parts = zip(*(path.split(".") for path in paths), strict=False)
    same = itertools.takewhile(lambda names: len(set(names)) == 1, parts)
    return ".".join(names[0] for names in same)


def _in_order(graph: Graph, units: Units, ops: dict[int, Op]) -> list[Op]:
    """The ops, by unit, each after what it waits for, else where its last member stood."""
    makers = {value: unit for unit, op in ops.items() for value in op.outputs if value != NONE}
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
        return phase_of(graph, units.members[unit]), units.members[unit][-1], unit

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
