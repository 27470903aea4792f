"""Clusters of nodes with their backward, and the problem of one by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from schemas.errors import ArtifactError
from schemas.graph import NONE
from schemas.hierarchy import Hierarchy
from schemas.problem import Node, Problem, Repeat, Reuse, Storage


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
    alone = _Alone(problem, lasting, {n: i for i, n in enumerate(nodes) if n != NONE})
    copies = [alone.node(index, node) for index, node in enumerate(nodes)]
    late = outside(problem, cluster, lasting)
    storages = [alone.stored(storage, cluster, late) for storage in alone.number]
    return Problem(copies, storages, problem.state_bytes), cluster.numbered(alone.place)


@dataclass(frozen=True)
class _Alone:
    """Nodes and storages of a cluster by itself: `place` is by node, `number` by storage as they
    appear."""

    problem: Problem
    lasting: Collection[int]
    place: dict[int, int]
    number: dict[int, int] = field(default_factory=dict)

    def node(self, index: int, node: int) -> Node:
        """A node at its place, the loss where it is NONE."""
        if node == NONE:
            return Node(index, "loss", 0.0, 0, [], [], [], False, False)
        found = self.problem.nodes[node]
        return replace(
            found,
            op=index,
            peak=self._peak(found),
            inputs=self._numbers(found.inputs),
            outputs=self._numbers(found.outputs),
            reuses=self._reuses(found),
            repeatable=self.problem.can_repeat(found),
            repeat=None if found.repeat is None else self._repeat(found.repeat),
        )

    def stored(self, storage: int, cluster: Cluster, made: Collection[int]) -> Storage:
        """A storage, which may be `made` for others."""
        producer = self.place.get(self.problem.storages[storage].producer, NONE)
        held = producer != NONE and storage in self.lasting
        stays = producer > len(cluster.forward) and storage in made
        return Storage(self._size(storage), producer, held, stays)

    def _repeat(self, repeat: Repeat) -> Repeat:
        inputs, outputs = self._numbers(repeat.inputs), self._numbers(repeat.outputs)
        return Repeat(inputs, outputs, repeat.seconds, self._peak(repeat))

    def _reuses(self, node: Node) -> list[Reuse]:
        """The forms in place that take no longer, of what is counted alone."""
        if not node.outputs or not self._size(node.outputs[0]):
            return []
        return [
            Reuse(self.number[reuse.storage], reuse.seconds, reuse.peak - self._uncounted(node))
            for reuse in node.reuses
            if reuse.seconds <= node.seconds and self._size(reuse.storage)
        ]

    def _numbers(self, storages: Iterable[int]) -> list[int]:
        return [self.number.setdefault(storage, len(self.number)) for storage in storages]

    def _size(self, storage: int) -> int:
        """The bytes of a storage that count: of what is made here and does not stay throughout."""
        own = self.problem.storages[storage].producer in self.place
        return self.problem.storages[storage].bytes if own and storage not in self.lasting else 0

    def _uncounted(self, form: Node | Repeat) -> int:
        storages = self.problem.storages
        return sum(storages[storage].bytes - self._size(storage) for storage in form.outputs)

    def _peak(self, form: Node | Repeat) -> int:
        return form.peak - self._uncounted(form)
