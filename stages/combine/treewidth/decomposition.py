"""A tree decomposition of a step, and the bags that halve a part of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
from networkx.algorithms.approximation import treewidth_min_degree

from tightfit.schemas.problem import Problem


@dataclass(frozen=True)
class Decomposition:
    """Sets of nodes (`bags`) that form a tree: `parent` gives the place of each bag's parent, which
    stands before it (-1: the root). Two nodes of which one reads what the other makes share a bag,
    and the bags of a node are connected."""

    bags: Sequence[frozenset[int]]
    parent: Sequence[int]

    @cached_property
    def home(self) -> dict[int, int]:
        """For each node the first of its bags."""
        found: dict[int, int] = {}
        for place, bag in enumerate(self.bags):
            for node in bag:
                found.setdefault(node, place)
        return found

    def halving(self, part: Collection[int], weight: Sequence[float]) -> frozenset[int]:
        """The bag without which no rest of a part, cut by it, has more than half of its weight."""
        below = [0.0] * len(self.bags)
        for node in part:
            below[self.home[node]] += weight[node]
        total = sum(below)
        largest = [0.0] * len(self.bags)
        for place in reversed(range(1, len(self.bags))):
            above = self.parent[place]
            below[above] += below[place]
            largest[above] = max(largest[above], below[place])
        worst = [max(rest, total - own) for rest, own in zip(largest, below, strict=True)]
        return self.bags[min(range(len(worst)), key=lambda place: (worst[place], place))]


def decomposed(problem: Problem) -> Decomposition:
    """The decomposition that the minimum degree heuristic finds; it need not be the narrowest."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(problem.nodes)))
    graph.add_edges_from(
        (problem.storages[storage].producer, position)
        for position, node in enumerate(problem.nodes)
        for storage in node.inputs
        if problem.storages[storage].producer >= 0
    )
    bags: list[frozenset[int]] = []
    parent: list[int] = []
    parts = sorted(nx.connected_components(graph), key=min)
    for part in parts:
        _, tree = treewidth_min_degree(graph.subgraph(part))
        root = min(tree.nodes, key=sorted)
        place = {root: len(bags)}
        bags.append(root)
        parent.append(-1 if len(bags) == 1 else 0)
        for above, bag in nx.bfs_edges(tree, root, sort_neighbors=lambda b: sorted(b, key=sorted)):
            place[bag] = len(bags)
            bags.append(bag)
            parent.append(place[above])
    return Decomposition(bags, parent)
