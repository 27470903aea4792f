"""Hierarchies of random steps: rows of their forwards in captured order."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.hierarchy import Hierarchy, HierarchyLevel
from tightfit.stages.partition.hierarchy.build import place_backward_nodes

DIGEST = "0" * 64


def rows_of(problem: PlanningGraph, sizes: Sequence[int]) -> Hierarchy:
    """The hierarchy whose lowest clusters are rows of `sizes[0]` nodes of the forward, those of the
    next level of `sizes[1]` clusters, and so on."""
    nodes = problem.nodes
    forward = list(range(problem.loss))
    levels: list[HierarchyLevel] = []
    members = len(forward)
    for size in sizes:
        parts = [min(size, members - first) for first in range(0, members, size)]
        levels.append(HierarchyLevel(parts, [DIGEST] * len(parts)))
        members = len(parts)
    return Hierarchy(
        model="random",
        prelude=[],
        forward=[nodes[node].op for node in forward],
        backward=[node.op for node in nodes[problem.loss + 1 :]],
        places=place_backward_nodes(problem, forward, [0] * len(nodes)),
        nodes=max(sizes[0], 2),
        clusters=max(*sizes, 2),
        top=max(members, 2),
        alpha=0.5,
        digest=DIGEST,
        levels=levels,
    )
