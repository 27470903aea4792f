"""The forward of a traced step, as H-Partition takes it, and its hierarchy as an artifact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph import Graph
from tightfit.schemas.hierarchy import Hierarchy, Tier
from tightfit.schemas.problem import Node
from tightfit.stages.partition.facts import Facts, gather_facts
from tightfit.stages.partition.hierarchy.backward import places_of
from tightfit.stages.partition.hierarchy.flow import ALPHA, Array, Flow, Limits
from tightfit.stages.partition.hierarchy.items import starts_of
from tightfit.stages.partition.hierarchy.partition import h_partition
from tightfit.stages.replay.condense import condense


@dataclass(frozen=True)
class Forward:
    """A step's forward: node i of `flow` is the op `ops[i]`; the ops of the `prelude` are none."""

    flow: Flow
    ops: list[int]
    prelude: list[int]


def hierarchy_of(
    graph: Graph, costs: Costs, limits: Limits | None = None, alpha: float = ALPHA
) -> Hierarchy:
    """The hierarchy of a step. Raises ConfigError where it cannot keep the limits."""
    limits = limits or Limits()
    forward = forward_of(graph, gather_facts(graph, condense(graph, costs, ordered=False)))
    tree = h_partition(forward.flow, limits, alpha)
    ops = [forward.ops[node] for node in tree.order]
    problem = condense(graph, costs)
    origin = [(graph.ops[node.op].module, graph.ops[node.op].source) for node in problem.nodes]
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    return Hierarchy(
        model=graph.model,
        prelude=forward.prelude,
        forward=ops,
        backward=[node.op for node in problem.nodes[problem.loss + 1 :]],
        places=places_of(problem, [position[op] for op in ops], origin),
        nodes=limits.nodes,
        clusters=limits.clusters,
        top=limits.top,
        alpha=alpha,
        digest=tree.digest.hex(),
        levels=[
            Tier(level.sizes.tolist(), [row.tobytes().hex() for row in level.digests])
            for level in tree.levels
        ],
    )


def forward_of(graph: Graph, facts: Facts) -> Forward:
    """The forward as flat arrays.

    Left out is the prelude: nodes that no gradient and no random number reaches and that make what
    several others read, masks for instance. What they make is given, and has no bytes since it is
    there throughout. A node that must run before another without making anything for it (both draw
    random numbers, both run once, or one writes a buffer that the other reads) makes a value
    without bytes for it.
    """
    problem = facts.problem
    prelude = _prelude(facts)
    places = [p for p in range(problem.loss) if p not in prelude]
    storages = {s: None for p in range(problem.loss) for s in problem.nodes[p].outputs}
    number = {storage: index for index, storage in enumerate(storages)}
    given = {s for p in prelude for s in problem.nodes[p].outputs}
    inputs = {p: [number[s] for s in problem.nodes[p].inputs if s in number] for p in places}
    outputs = {p: [number[s] for s in problem.nodes[p].outputs] for p in places}
    sizes = [0 if s in given else problem.storages[s].bytes for s in storages]
    kept = set(problem.nodes[problem.loss].inputs)
    result = [s in kept or problem.storages[s].held for s in storages]
    for before, after in _in_turn(graph, facts, places):
        outputs[before].append(len(sizes))
        inputs[after].append(len(sizes))
        sizes.append(0)
        result.append(False)
    labels: dict[str, int] = {}
    kind = [labels.setdefault(_label(graph, facts, p), len(labels)) for p in places]
    flow = Flow(
        list(labels),
        np.array(kind, np.int64),
        *_rows([inputs[p] for p in places]),
        *_rows([outputs[p] for p in places]),
        np.array(sizes, np.int64),
        np.array(result, np.bool_),
    )
    ops = [problem.nodes[p].op for p in places]
    return Forward(flow, ops, [problem.nodes[p].op for p in sorted(prelude)])


def _prelude(facts: Facts) -> set[int]:
    """The pure nodes that make what several other nodes read, with all that these need."""
    problem = facts.problem
    wanted: set[int] = set()
    for position in sorted(facts.pure, reverse=True):
        readers = {r for s in problem.nodes[position].outputs for r in problem.readers[s]}
        others = {r for r in readers if r < problem.loss and r not in facts.pure}
        if position in wanted or len(others) > 1:
            wanted.add(position)
            wanted |= {problem.storages[s].producer for s in problem.nodes[position].inputs}
    return wanted


def _in_turn(graph: Graph, facts: Facts, places: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of nodes of which the first one runs first, although it makes nothing for the other."""
    nodes = facts.problem.nodes
    written = {
        graph.values[value].storage
        for op in graph.ops
        if op.phase == "forward"
        for value in op.writes
    }
    drawn: int | None = None
    once: int | None = None
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for position in places:
        op = graph.ops[nodes[position].op]
        if op.random:
            if drawn is not None:
                yield drawn, position
            drawn = position
        if not op.repeatable:
            if once is not None:
                yield once, position
            once = position
        writes = {graph.values[value].storage for value in op.writes}
        reads = {graph.values[value].storage for value in op.inputs} & written
        before = {writer[s] for s in reads | writes if s in writer}
        before |= {reader for s in writes for reader in readers.pop(s, [])}
        yield from ((other, position) for other in sorted(before))
        writer.update(dict.fromkeys(writes, position))
        for storage in reads - writes:
            readers.setdefault(storage, []).append(position)


def _label(graph: Graph, facts: Facts, position: int) -> str:
    """What a node does and costs, and what the backward has of it."""
    problem, node = facts.problem, facts.problem.nodes[position]
    reuses = [[node.inputs.index(r.storage), r.seconds, r.peak] for r in node.reuses]
    later = [any(r > problem.loss for r in problem.readers[s]) for s in node.outputs]
    document = [graph.ops[node.op].target, node.seconds, node.peak, reuses, later]
    return json.dumps([*document, node.random, node.repeatable, _again(node)])


def _again(node: Node) -> list[object]:
    """How a node runs again where that differs, with its own numbers for storages."""
    if node.repeat is None:
        return []
    known = {s: index for index, s in enumerate([*node.inputs, *node.outputs])}
    form = node.repeat
    reads, makes = ([known.get(s, -1) for s in part] for part in (form.inputs, form.outputs))
    return [reads, makes, form.seconds, form.peak]


def _rows(lists: list[list[int]]) -> tuple[Array, Array]:
    start = starts_of(np.array([len(found) for found in lists], np.int64))
    return start, np.array([value for found in lists for value in found], np.int64)
