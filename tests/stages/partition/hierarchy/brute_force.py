"""Slow definitions that H-Partition is compared with."""

from __future__ import annotations

from itertools import chain

from tightfit.stages.partition.hierarchy.arrays import (
    ClusterLevel,
    ClusterTree,
    ForwardGraph,
    node_items,
)

Edges = set[tuple[int, int]]


def node_reads(flow: ForwardGraph, node: int) -> list[int]:
    return flow.input_item[flow.input_start[node] : flow.input_start[node + 1]].tolist()


def node_outputs(flow: ForwardGraph, node: int) -> list[int]:
    return flow.output_item[flow.output_start[node] : flow.output_start[node + 1]].tolist()


def edges(flow: ForwardGraph) -> Edges:
    """Pairs of nodes of which the second one reads a value of the first one."""
    maker = {value: node for node in range(flow.count) for value in node_outputs(flow, node)}
    return {
        (maker[value], node)
        for node in range(flow.count)
        for value in node_reads(flow, node)
        if value in maker
    }


def reached(flow_edges: Edges, count: int) -> list[set[int]]:
    """For each node those that a path of one edge or more leads to."""
    after: list[set[int]] = [set() for _ in range(count)]
    changed = True
    while changed:
        changed = False
        for first, second in flow_edges:
            more = {second} | after[second]
            if not more <= after[first]:
                after[first] |= more
                changed = True
    return after


def is_convex(cluster: set[int], after: list[set[int]]) -> bool:
    """Z, Definition 3.3.1: all that lies on a path between two members is a member."""
    return not any(
        node not in cluster and node in after[first] and second in after[node]
        for first in cluster
        for second in cluster
        for node in after[first]
    )


def has_cycle(flow_edges: Edges, cluster: dict[int, int]) -> bool:
    """Whether the graph of the clusters has one."""
    between = {(cluster[a], cluster[b]) for a, b in flow_edges if cluster[a] != cluster[b]}
    count = max(cluster.values(), default=-1) + 1
    return any(c in after for c, after in enumerate(reached(between, count)))


def clusters(tree: ClusterTree) -> list[list[list[int]]]:
    """For each level the nodes of each cluster, in order."""
    members = [[node] for node in tree.order.tolist()]
    found = []
    for level in tree.levels:
        members = [list(chain.from_iterable(part)) for part in _split(members, level)]
        found.append(members)
    return found


def _split(members: list[list[int]], level: ClusterLevel) -> list[list[list[int]]]:
    parts, start = [], 0
    for size in level.sizes.tolist():
        parts.append(members[start : start + size])
        start += size
    return parts


def slow_border(flow: ForwardGraph, cluster: set[int]) -> int:
    """The bytes that a cluster reads of others or makes for others."""
    made = {value for node in cluster for value in node_outputs(flow, node)}
    read = {value for node in cluster for value in node_reads(flow, node)}
    elsewhere = {v for n in range(flow.count) if n not in cluster for v in node_reads(flow, n)}
    out = {value for value in made if value in elsewhere or flow.result[value]}
    return int(sum(flow.bytes[value] for value in (read - made) | out))


def portrait(flow: ForwardGraph, cluster: list[int]) -> object:
    """All that a cluster is, its nodes in order: kinds, sizes, wires, what leaves."""
    place = {node: index for index, node in enumerate(cluster)}
    maker = {v: (place[n], i) for n in cluster for i, v in enumerate(node_outputs(flow, n))}
    elsewhere = {v for n in range(flow.count) if n not in place for v in node_reads(flow, n)}
    number: dict[int, int] = {}
    rows: list[object] = []
    for node in cluster:
        inputs = [
            maker.get(v, (-1 - number.setdefault(v, len(number)), int(flow.bytes[v])))
            for v in node_reads(flow, node)
        ]
        outputs = [
            (int(flow.bytes[v]), bool(flow.result[v]), v in elsewhere)
            for v in node_outputs(flow, node)
        ]
        label = flow.labels[flow.kind[node]]
        rows.append((label, inputs, [(b, r, r or e) for b, r, e in outputs]))
    return rows


def slow_groups(
    flow: ForwardGraph, intervals: list[tuple[int, int]], limit: int, enough: int, alpha: float
) -> list[int]:
    """The ends of the groups that the best candidate first makes, every one counted anew.

    Nodes are numbered in order.
    """
    groups = [(node, node + 1) for node in range(flow.count)]
    colors = node_items(flow).digest_hash.tolist()

    def rank(interval: tuple[int, int]) -> tuple[float, int, int]:
        nodes, label = range(*interval), 0
        for node in nodes:
            label = (label * 0x9E3779B97F4A7C15 + colors[node]) % 2**64
        return slow_border(flow, set(nodes)) * float(len(nodes)) ** alpha, len(nodes), label

    previous = None
    while True:
        grown = set()
        for low, high in intervals:
            first = next(start for start, end in groups if start <= low < end)
            last = next(end for start, end in groups if start < high <= end)
            if (first, last) not in groups and last - first <= limit:
                grown.add((first, last))
        best = min(grown, key=lambda interval: (*rank(interval), interval), default=None)
        if best is None or (len(groups) <= enough and rank(best) != previous):
            return [end for _, end in groups]
        previous = rank(best)
        outside = [group for group in groups if group[1] <= best[0] or group[0] >= best[1]]
        groups = sorted([*outside, best])
