"""Clusters of nodes with their backward, and the problem of one by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import NONE
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.schemas.problem import Node, Problem, Storage
from tightfit.stages.replay.part import StepPart


@dataclass(frozen=True)
class Cluster:
    """Positions of nodes in a problem: of the forward, in an order that they can run in, and of the
    backward as they were captured. The forward of `members` in a row is the forward; a lowest
    cluster has none."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    members: tuple[Cluster, ...] = ()

    def numbered(self, number: Sequence[int] | dict[int, int]) -> Cluster:
        """The cluster with other positions."""
        return Cluster(
            tuple(number[node] for node in self.forward),
            tuple(number[node] for node in self.backward),
            tuple(member.numbered(number) for member in self.members),
        )


def clusters_of(problem: Problem, hierarchy: Hierarchy) -> Cluster:
    """The whole of a hierarchy, its members those of the last level, without the prelude. Raises
    ArtifactError where the hierarchy is that of another step."""
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    ops = [*hierarchy.prelude, *hierarchy.forward, *hierarchy.backward]
    loss = problem.nodes[problem.loss].op
    if sorted([*ops, loss]) != sorted(position):
        raise ArtifactError("the hierarchy is that of another graph: make it of this one")
    forward = tuple(position[op] for op in hierarchy.forward)
    backward: list[list[int]] = [[] for _ in forward]
    for op, place in zip(hierarchy.backward, hierarchy.places, strict=True):
        backward[place].append(position[op])

    def cluster(places: range, members: tuple[Cluster, ...]) -> Cluster:
        own = sorted(node for place in places for node in backward[place])
        return Cluster(tuple(forward[place] for place in places), tuple(own), members)

    below: list[Cluster] = []
    for level, tier in enumerate(hierarchy.levels):
        starts = pairwise(accumulate(tier.sizes, initial=0))
        spans = hierarchy.spans(level)
        below = [
            cluster(span, tuple(below[first:end]) if level else ())
            for span, (first, end) in zip(spans, starts, strict=True)
        ]
    return cluster(range(len(forward)), tuple(below))


def throughout(problem: Problem) -> set[int]:
    """Storages that stay once they are made as far as clusters are concerned: of the forward, what
    is held or cannot be made again."""
    return {
        storage
        for node in problem.nodes[: problem.loss]
        for storage in (node.lasting if problem.can_repeat(node) else node.outputs)
    }


def outside(problem: Problem, cluster: Cluster, lasting: Collection[int]) -> set[int]:
    """What a cluster makes for others: they read it, or it stays."""
    own = {*cluster.forward, *cluster.backward}
    return {
        storage
        for node in own
        for storage in problem.nodes[node].outputs
        if storage in lasting
        or problem.storages[storage].stays
        or not own.issuperset(problem.readers[storage])
    }


def local(problem: Problem, cluster: Cluster, lasting: Collection[int]) -> tuple[Problem, Cluster]:
    """The problem of a cluster by itself, and the cluster in its positions.

    Nodes and storages are numbered in the order in which they appear, so that equal clusters have
    equal problems. What others make, and what stays throughout, has no bytes; what the backward
    makes for others stays. The loss between forward and backward reads and makes nothing.
    """
    nodes = [*cluster.forward, NONE, *cluster.backward]
    place = {node: index for index, node in enumerate(nodes) if node != NONE}
    late = outside(problem, cluster, lasting)

    def bytes_of(storage: int) -> int:
        own = problem.storages[storage].producer in place and storage not in lasting
        return problem.storages[storage].bytes if own else 0

    def stored(storage: int) -> Storage:
        producer = place.get(problem.storages[storage].producer, NONE)
        held = producer != NONE and storage in lasting
        stays = producer > len(cluster.forward) and storage in late
        return Storage(bytes_of(storage), producer, held, stays)

    part = StepPart(problem, bytes_of)
    copies = [_copied(part, index, node) for index, node in enumerate(nodes)]
    own = Problem(copies, list(map(stored, part.numbers)), problem.state_bytes)
    return own, cluster.numbered(place)


def _copied(part: StepPart, index: int, node: int) -> Node:
    """A node at its place in a part, the loss where it is NONE."""
    if node == NONE:
        return Node(index, "loss", 0.0, 0, [], [], [], False, False)
    again = part.problem.can_repeat(part.problem.nodes[node])
    return part.node(node, index, repeatable=again, repeats=True)
