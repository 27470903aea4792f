"""The forward of a traced step, as H-Partition takes it, and its hierarchy as an artifact."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.hierarchy import Hierarchy, HierarchyLevel
from tightfit.stages.partition.gradient_flow import GradientFlow, analyze_gradient_flow
from tightfit.stages.partition.hierarchy.arrays import (
    DEFAULT_ALPHA,
    Array,
    ForwardGraph,
    HierarchyLimits,
    list_starts,
)
from tightfit.stages.partition.hierarchy.h_partition import h_partition
from tightfit.stages.simulate.planning_graph import build_planning_graph


def place_backward_nodes(
    problem: PlanningGraph, forward: Sequence[int], origin: Sequence[Hashable]
) -> list[int]:
    """For each node of the backward the place in `forward`, which are nodes in an order that they
    can run in, where it belongs.

    The place is that of a node of the same origin (`origin` has one for each node of the problem)
    that reads or makes the most of what the node reads, the last one of several. What the node
    reads of the backward comes first: its place is ahead of that, where that is earlier. So along
    the reads of the backward places do not rise. Without a node of its origin it belongs where the
    last of what it reads of the backward does.
    """
    alike: dict[Hashable, list[int]] = {}
    touching: dict[tuple[Hashable, int], list[int]] = {}
    for place, node in enumerate(forward):
        alike.setdefault(origin[node], []).append(place)
        for storage in {*problem.nodes[node].inputs, *problem.nodes[node].outputs}:
            touching.setdefault((origin[node], storage), []).append(place)
    last = max(len(forward) - 1, 0)
    found: dict[int, int] = {}
    for position in range(problem.loss + 1, len(problem.nodes)):
        reads = problem.nodes[position].inputs
        makers = {problem.storages[storage].producer for storage in reads}
        highest = min((found[maker] for maker in makers if maker in found), default=last)
        near = Counter(
            place
            for storage in reads
            for place in touching.get((origin[position], storage), ())
            if place <= highest
        )
        same = alike.get(origin[position], [])
        before = bisect_right(same, highest)
        if near:
            found[position] = max(near, key=lambda place: (near[place], place))
        else:
            found[position] = same[before - 1] if before else highest
    return list(found.values())


@dataclass(frozen=True)
class StepForward:
    """A step's forward: node i of `flow` is the op `ops[i]`; the ops of the `prelude` are none."""

    flow: ForwardGraph
    ops: list[int]
    prelude: list[int]


def build_hierarchy(
    graph: Graph, costs: Costs, limits: HierarchyLimits | None = None, alpha: float = DEFAULT_ALPHA
) -> Hierarchy:
    """The hierarchy of a step. Raises ConfigError where it cannot keep the limits."""
    limits = limits or HierarchyLimits()
    forward = build_step_forward(
        graph, analyze_gradient_flow(graph, build_planning_graph(graph, costs, ordered=False))
    )
    tree = h_partition(forward.flow, limits, alpha)
    ops = [forward.ops[node] for node in tree.order]
    problem = build_planning_graph(graph, costs)
    origin = [(graph.ops[node.op].module, graph.ops[node.op].source) for node in problem.nodes]
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    return Hierarchy(
        model=graph.model,
        prelude=forward.prelude,
        forward=ops,
        backward=[node.op for node in problem.nodes[problem.loss + 1 :]],
        places=place_backward_nodes(problem, [position[op] for op in ops], origin),
        nodes=limits.nodes,
        clusters=limits.clusters,
        top=limits.top,
        alpha=alpha,
        digest=tree.digest.hex(),
        levels=[
            HierarchyLevel(level.sizes.tolist(), [row.tobytes().hex() for row in level.digests])
            for level in tree.levels
        ],
    )


def build_step_forward(graph: Graph, facts: GradientFlow) -> StepForward:
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
    for before, after in _order_constraints(graph, facts, places):
        outputs[before].append(len(sizes))
        inputs[after].append(len(sizes))
        sizes.append(0)
        result.append(False)
    labels: dict[str, int] = {}
    kind = [labels.setdefault(_node_label(graph, facts, p), len(labels)) for p in places]
    flow = ForwardGraph(
        list(labels),
        np.array(kind, np.int64),
        *_flatten_lists([inputs[p] for p in places]),
        *_flatten_lists([outputs[p] for p in places]),
        np.array(sizes, np.int64),
        np.array(result, np.bool_),
    )
    ops = [problem.nodes[p].op for p in places]
    return StepForward(flow, ops, [problem.nodes[p].op for p in sorted(prelude)])


def _prelude(facts: GradientFlow) -> set[int]:
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


def _order_constraints(
    graph: Graph, facts: GradientFlow, places: list[int]
) -> Iterator[tuple[int, int]]:
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


def _node_label(graph: Graph, facts: GradientFlow, position: int) -> str:
    """What a node does and costs, and what the backward has of it."""
    problem, node = facts.problem, facts.problem.nodes[position]
    reuses = [[node.inputs.index(r.storage), r.seconds, r.peak] for r in node.reuses]
    later = [any(r > problem.loss for r in problem.readers[s]) for s in node.outputs]
    document = [graph.ops[node.op].target, node.seconds, node.peak, reuses, later]
    return json.dumps([*document, node.random, node.repeatable, _repeat_form(node)])


def _repeat_form(node: PlanningNode) -> list[object]:
    """How a node runs again where that differs, with its own numbers for storages."""
    if node.repeat is None:
        return []
    known = {s: index for index, s in enumerate([*node.inputs, *node.outputs])}
    form = node.repeat
    reads, makes = ([known.get(s, -1) for s in part] for part in (form.inputs, form.outputs))
    return [reads, makes, form.seconds, form.peak]


def _flatten_lists(lists: list[list[int]]) -> tuple[Array, Array]:
    start = list_starts(np.array([len(found) for found in lists], np.int64))
    return start, np.array([value for found in lists for value in found], np.int64)
