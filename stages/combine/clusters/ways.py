"""The ways to run clusters by their options, as tasks of a program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tightfit.schemas.graph import NONE
from tightfit.schemas.problem import Node, Problem, Repeat
from tightfit.stages.combine.clusters.cluster import Cluster, outside
from tightfit.stages.combine.unrolled.tasks import (
    NOTHING_KEPT,
    Level,
    Task,
    Tasks,
    Value,
    Way,
)
from tightfit.stages.replay.line import ended, limits
from tightfit.stages.replay.useless import without_useless

Form = Node | Repeat


@dataclass(frozen=True)
class Option:
    """A way to run a cluster: the nodes of its forward and those of its backward, what runs again
    repeated."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, sequence: Sequence[int]) -> Option:
        """The option that runs the nodes of a cluster that is a problem by itself in this order."""
        order = without_useless(problem, sequence)
        middle = order.index(problem.loss)
        return cls(tuple(order[:middle]), tuple(order[middle + 1 :]))


@dataclass(frozen=True)
class Optional:
    """A cluster with its options."""

    cluster: Cluster
    options: Sequence[Option]


def tasks_of_clusters(
    problem: Problem,
    prelude: Sequence[int],
    members: Sequence[Optional],
    lasting: Collection[int],
) -> Tasks:
    """Forwards and backwards of clusters as tasks: the prelude if there is one, the forwards, the
    loss, the backwards in reverse order. Option o of a cluster is its `options[o - 1]`."""
    tasks: list[Task] = []
    values = [Value(0, NONE, False)] * len(problem.storages)
    saved: dict[tuple[int, int], int] = {}
    backwards: list[tuple[int, Optional]] = []

    def add(task: Task, makes: Iterable[int]) -> int:
        tasks.append(task)
        for storage in makes:
            kind = problem.storages[storage]
            stays = kind.stays or storage in lasting
            values[storage] = Value(kind.bytes, len(tasks) - 1, stays)
        return len(tasks) - 1

    if prelude:
        made = {s for node in prelude for s in problem.nodes[node].outputs}
        add(Task((_once(problem, prelude, made),)), made)
    for member in members:
        own = _Ways(problem, member, outside(problem, member.cluster, lasting))
        number = add(own.forward(), own.made_before)
        if member.cluster.backward:
            backwards.append((number, member))
        saved.update({(number, o): size for o, size in own.saved.items()})
    loss = problem.nodes[problem.loss]
    alone = _once(problem, [problem.loss], loss.outputs)
    position = add(Task((alone,)), loss.outputs)
    for number, member in reversed(backwards):
        own = _Ways(problem, member, outside(problem, member.cluster, lasting))
        add(own.backward(number), own.made_after)
    return Tasks(tasks, values, position, saved)


class _Ways:
    """The ways of one cluster, of which `border` is what it makes for others."""

    def __init__(self, problem: Problem, member: Optional, border: Collection[int]) -> None:
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

    def _kept(self, option: Option, inner: set[int]) -> set[int]:
        """What of its own forward the backward of an option reads before it makes it."""
        return inner & _read(self._backward_forms(option))

    def _backward_forms(self, option: Option) -> list[Form]:
        late = set(self.cluster.backward)
        return [self.problem.nodes[node].form(node not in late) for node in option.backward]

    def forward(self) -> Task:
        """The forward: by way 0, and by each option that keeps anything."""
        nothing = Option(self.cluster.forward, ())
        first = [self._first(NOTHING_KEPT, nothing)]
        further = [self._again(NOTHING_KEPT, nothing, set(self.made_before))]
        late = list(further)
        for o, option in self.options:
            if o in self.saved:
                first.append(self._first(o, option))
                further.append(self._again(o, option, set(self.made_before)))
                read = _read(self._backward_forms(option)).intersection(self.made_before)
                late.append(self._again(o, option, read))
        if not any(way.runs for way in further):
            return Task(tuple(first))
        return Task(tuple(first), tuple(further), tuple(late))

    def _first(self, o: int, option: Option) -> Way:
        final = {*self.made_before, *self.kept.get(o, ())}
        seen: set[int] = set()
        forms = []
        for node in option.forward:
            forms.append(self.problem.nodes[node].form(node in seen))
            seen.add(node)
        return _way_of(self.problem, o, option.forward, forms, set(), final)

    def _again(self, o: int, option: Option, border: set[int]) -> Way:
        """A further run that makes what the option keeps and, of what others read, `border`."""
        final = {*border, *self.kept.get(o, ())}
        nodes = [self.problem.nodes[node] for node in self.cluster.forward]
        runs = [
            (node, position)
            for node, position in zip(nodes, self.cluster.forward, strict=True)
            if self.problem.can_repeat(node)
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
        return _way_of(self.problem, o, chosen, forms, set(), final)

    def backward(self, forward: int) -> Task:
        """The backward, by each option."""
        ways = [
            _way_of(
                self.problem,
                o,
                option.backward,
                self._backward_forms(option),
                self.kept[o],
                set(self.made_after),
            )
            for o, option in self.options
        ]
        return Task(tuple(ways), forward=forward)


def _read(forms: Iterable[Form]) -> set[int]:
    """What is read before it is made."""
    made: set[int] = set()
    found: set[int] = set()
    for form in forms:
        found |= set(form.inputs) - made
        made.update(form.outputs)
    return found


def _once(problem: Problem, runs: Sequence[int], makes: Iterable[int]) -> Way:
    forms = [problem.nodes[node] for node in runs]
    return _way_of(problem, NOTHING_KEPT, runs, forms, set(), set(makes))


def _way_of(
    problem: Problem,
    option: int,
    runs: Sequence[int],
    forms: Sequence[Form],
    given: set[int],
    final: set[int],
) -> Way:
    """The way that runs nodes in these forms; it has what is `given` for itself, and what it makes
    of `final` is there when it ends."""
    made = {storage for form in forms for storage in form.outputs}
    reads = {s for s in _read(forms) - given if problem.storages[s].producer >= 0}
    last = {storage: index for index, form in enumerate(forms) for storage in form.inputs}
    there, levels = set(given), []
    for index, (form, gone) in enumerate(zip(forms, ended(forms, final), strict=True)):
        before = sum(problem.storages[s].bytes for s in there)
        read = frozenset(s for s in reads if last[s] < index)
        undecided = {s for s in reads if last[s] == index and not problem.storages[s].stays}
        for own, ending in limits(problem, form, there.intersection(gone), undecided):
            levels.append(Level(before + own, read | ending))
        there = (there | set(form.outputs)) - set(gone)
    return Way(
        option,
        sum(form.least_seconds for form in forms),
        frozenset(reads),
        frozenset(final & made),
        tuple(_highest(levels)),
        tuple(runs),
    )


def _highest(levels: Sequence[Level]) -> list[Level]:
    """The levels that no other is above, whatever is there after it."""
    found: list[Level] = []
    for level in sorted(levels, key=lambda level: (-level.own, len(level.ended))):
        if not any(other.ended <= level.ended for other in found):
            found.append(level)
    return found
