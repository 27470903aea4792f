"""Clusters of nodes with their backward, and the problem of one by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tightfit.schemas.graph.planning_graph import (
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeVariant,
)
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.stages.combine.checkmate.tasks import (
    NOTHING_KEPT,
    StepTask,
    TaskGraph,
    TaskMemory,
    TaskOption,
    TaskValue,
)
from tightfit.stages.simulate.block import SubproblemBuilder
from tightfit.stages.simulate.liveness import drop_unused_recomputes, ending_storages, memory_limits
from tightfit.util.errors import ArtifactError


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


def build_clusters(problem: PlanningGraph, hierarchy: Hierarchy) -> Cluster:
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


def lasting_storages(problem: PlanningGraph) -> set[int]:
    """Storages that stay once they are made as far as clusters are concerned: of the forward, what
    is held or cannot be made again."""
    return {
        storage
        for node in problem.nodes[: problem.loss]
        for storage in (node.lasting if problem.can_recompute(node) else node.outputs)
    }


def border_storages(problem: PlanningGraph, cluster: Cluster, lasting: Collection[int]) -> set[int]:
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


def isolate_cluster(
    problem: PlanningGraph, cluster: Cluster, lasting: Collection[int]
) -> tuple[PlanningGraph, Cluster]:
    """The problem of a cluster by itself, and the cluster in its positions.

    Nodes and storages are numbered in the order in which they appear, so that equal clusters have
    equal problems. What others make, and what stays throughout, has no bytes; what the backward
    makes for others stays. The loss between forward and backward reads and makes nothing.
    """
    nodes = [*cluster.forward, NO_VALUE, *cluster.backward]
    place = {node: index for index, node in enumerate(nodes) if node != NO_VALUE}
    late = border_storages(problem, cluster, lasting)

    def bytes_of(storage: int) -> int:
        own = problem.storages[storage].producer in place and storage not in lasting
        return problem.storages[storage].bytes if own else 0

    def stored(storage: int) -> PlanningStorage:
        producer = place.get(problem.storages[storage].producer, NO_VALUE)
        held = producer != NO_VALUE and storage in lasting
        stays = producer > len(cluster.forward) and storage in late
        return PlanningStorage(bytes_of(storage), producer, held, stays)

    part = SubproblemBuilder(problem, bytes_of)
    copies = [_copy_node(part, index, node) for index, node in enumerate(nodes)]
    own = PlanningGraph(copies, list(map(stored, part.numbers)), problem.state_bytes)
    return own, cluster.numbered(place)


def _copy_node(part: SubproblemBuilder, index: int, node: int) -> PlanningNode:
    """A node at its place in a part, the loss where it is NONE."""
    if node == NO_VALUE:
        return PlanningNode(index, "loss", 0.0, 0, [], [], [], False, False)
    again = part.problem.can_recompute(part.problem.nodes[node])
    return part.node(node, index, repeatable=again, repeats=True)


NodeForm = PlanningNode | RecomputeVariant


@dataclass(frozen=True)
class ClusterOption:
    """A way to run a cluster: the nodes of its forward and those of its backward, what runs again
    repeated."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @classmethod
    def of(cls, problem: PlanningGraph, sequence: Sequence[int]) -> ClusterOption:
        """The option that runs the nodes of a cluster that is a problem by itself in this order."""
        order = drop_unused_recomputes(problem, sequence)
        middle = order.index(problem.loss)
        return cls(tuple(order[:middle]), tuple(order[middle + 1 :]))


@dataclass(frozen=True)
class ClusterOptions:
    """A cluster with its options."""

    cluster: Cluster
    options: Sequence[ClusterOption]


def build_cluster_tasks(
    problem: PlanningGraph,
    prelude: Sequence[int],
    members: Sequence[ClusterOptions],
    lasting: Collection[int],
) -> TaskGraph:
    """Forwards and backwards of clusters as tasks: the prelude if there is one, the forwards, the
    loss, the backwards in reverse order. Option o of a cluster is its `options[o - 1]`."""
    tasks: list[StepTask] = []
    values = [TaskValue(0, NO_VALUE, False)] * len(problem.storages)
    saved: dict[tuple[int, int], int] = {}
    backwards: list[tuple[int, ClusterOptions]] = []

    def add(task: StepTask, makes: Iterable[int]) -> int:
        tasks.append(task)
        for storage in makes:
            kind = problem.storages[storage]
            stays = kind.stays or storage in lasting
            values[storage] = TaskValue(kind.bytes, len(tasks) - 1, stays)
        return len(tasks) - 1

    if prelude:
        made = {s for node in prelude for s in problem.nodes[node].outputs}
        add(StepTask((_single_run_option(problem, prelude, made),)), made)
    for member in members:
        own = _ClusterTaskBuilder(
            problem, member, border_storages(problem, member.cluster, lasting)
        )
        number = add(own.forward(), own.made_before)
        if member.cluster.backward:
            backwards.append((number, member))
        saved.update({(number, o): size for o, size in own.saved.items()})
    loss = problem.nodes[problem.loss]
    alone = _single_run_option(problem, [problem.loss], loss.outputs)
    position = add(StepTask((alone,)), loss.outputs)
    for number, member in reversed(backwards):
        own = _ClusterTaskBuilder(
            problem, member, border_storages(problem, member.cluster, lasting)
        )
        add(own.backward(number), own.made_after)
    return TaskGraph(tasks, values, position, saved)


class _ClusterTaskBuilder:
    """The ways of one cluster, of which `border` is what it makes for others."""

    def __init__(
        self, problem: PlanningGraph, member: ClusterOptions, border: Collection[int]
    ) -> None:
        self.problem = problem
        self.cluster = member.cluster
        self.options = list(enumerate(member.options, 1))
        before = {s for node in self.cluster.forward for s in problem.nodes[node].outputs}
        self.made_before = sorted(before.intersection(border))
        self.made_after = sorted(set(border) - before)
        self.kept = {o: self._kept(option, before - set(border)) for o, option in self.options}
        self.saved = {
            o: sum(problem.storages[storage].bytes for storage in kept)
            for o, kept in self.kept.items()
            if kept
        }

    def _kept(self, option: ClusterOption, inner: set[int]) -> set[int]:
        """What of its own forward the backward of an option reads before it makes it."""
        return inner & _external_reads(self._backward_forms(option))

    def _backward_forms(self, option: ClusterOption) -> list[NodeForm]:
        late = set(self.cluster.backward)
        return [self.problem.nodes[node].form(node not in late) for node in option.backward]

    def forward(self) -> StepTask:
        """The forward: by way 0, and by each option that keeps anything."""
        nothing = ClusterOption(self.cluster.forward, ())
        first = [self._first(NOTHING_KEPT, nothing)]
        further = [self._again(NOTHING_KEPT, set(self.made_before))]
        late = list(further)
        for o, option in self.options:
            if o in self.saved:
                first.append(self._first(o, option))
                further.append(self._again(o, set(self.made_before)))
                read = _external_reads(self._backward_forms(option)).intersection(self.made_before)
                late.append(self._again(o, read))
        if not any(way.runs for way in further):
            return StepTask(tuple(first))
        return StepTask(tuple(first), tuple(further), tuple(late))

    def _first(self, o: int, option: ClusterOption) -> TaskOption:
        final = {*self.made_before, *self.kept.get(o, ())}
        seen: set[int] = set()
        forms = []
        for node in option.forward:
            forms.append(self.problem.nodes[node].form(node in seen))
            seen.add(node)
        return _build_option(self.problem, o, option.forward, forms, set(), final)

    def _again(self, o: int, border: set[int]) -> TaskOption:
        """A further run that makes what the option keeps and, of what others read, `border`."""
        final = {*border, *self.kept.get(o, ())}
        nodes = [self.problem.nodes[node] for node in self.cluster.forward]
        runs = [
            (node, position)
            for node, position in zip(nodes, self.cluster.forward, strict=True)
            if self.problem.can_recompute(node)
        ]
        needed = set(final)
        chosen: list[int] = []
        for node, position in reversed(runs):
            form = node.form(True)
            if needed.intersection(form.outputs):
                needed.difference_update(form.outputs)
                needed.update(form.inputs)
                chosen.append(position)
        chosen.reverse()
        forms = [self.problem.nodes[node].form(True) for node in chosen]
        return _build_option(self.problem, o, chosen, forms, set(), final)

    def backward(self, forward: int) -> StepTask:
        """The backward, by each option."""
        ways = [
            _build_option(
                self.problem,
                o,
                option.backward,
                self._backward_forms(option),
                self.kept[o],
                set(self.made_after),
            )
            for o, option in self.options
        ]
        return StepTask(tuple(ways), forward=forward)


def _external_reads(forms: Iterable[NodeForm]) -> set[int]:
    """What is read before it is made."""
    made: set[int] = set()
    found: set[int] = set()
    for form in forms:
        found |= set(form.inputs) - made
        made.update(form.outputs)
    return found


def _single_run_option(
    problem: PlanningGraph, runs: Sequence[int], makes: Iterable[int]
) -> TaskOption:
    forms = [problem.nodes[node] for node in runs]
    return _build_option(problem, NOTHING_KEPT, runs, forms, set(), set(makes))


def _build_option(
    problem: PlanningGraph,
    option: int,
    runs: Sequence[int],
    forms: Sequence[NodeForm],
    given: set[int],
    final: set[int],
) -> TaskOption:
    """The way that runs nodes in these forms; it has what is `given` for itself, and what it makes
    of `final` is there when it ends."""
    made = {storage for form in forms for storage in form.outputs}
    reads = {s for s in _external_reads(forms) - given if problem.storages[s].producer >= 0}
    last = {storage: index for index, form in enumerate(forms) for storage in form.inputs}
    there, levels = set(given), []
    for index, (form, gone) in enumerate(zip(forms, ending_storages(forms, final), strict=True)):
        before = sum(problem.storages[s].bytes for s in there)
        read = frozenset(s for s in reads if last[s] < index)
        undecided = {s for s in reads if last[s] == index and not problem.storages[s].stays}
        for own, ending in memory_limits(problem, form, there.intersection(gone), undecided):
            levels.append(TaskMemory(before + own, read | ending))
        there = (there | set(form.outputs)) - set(gone)
    return TaskOption(
        option,
        sum(form.least_seconds for form in forms),
        frozenset(reads),
        frozenset(final & made),
        tuple(_dominant_levels(levels)),
        tuple(runs),
    )


def _dominant_levels(levels: Sequence[TaskMemory]) -> list[TaskMemory]:
    """The levels that no other is above, whatever is there after it."""
    found: list[TaskMemory] = []
    for level in sorted(levels, key=lambda level: (-level.own, len(level.ended))):
        if not any(other.ended <= level.ended for other in found):
            found.append(level)
    return found
