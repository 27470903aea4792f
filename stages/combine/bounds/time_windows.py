"""Moments of a step, and on which side of them its nodes can run for the first time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tightfit.schemas.graph.planning_graph import PlanningGraph


@dataclass(frozen=True)
class TimeWindows:
    """The times between moments, 0 to the number of moments.

    A moment is the first run of a node of `moments`, each of which depends on the one before it,
    so that every order of the step has them in this order. Period p goes from the moment p - 1
    (the run included) to the next. The first run of a node is in none before `earliest` and in
    none after `latest`; `before` has a bit for each node that first runs ahead of it in every plan.
    """

    moments: tuple[int, ...]
    earliest: list[int]
    latest: list[int]
    before: list[int]

    def precedes(self, one: int, other: int) -> bool:
        """Whether a node first runs before another one in every plan."""
        return bool(self.before[other] >> one & 1)

    def fixed(self, node: int) -> bool:
        """Whether the interval of the first run is known."""
        return self.earliest[node] == self.latest[node]

    def first(self, node: int) -> range:
        """The intervals in which the first run can be."""
        return range(self.earliest[node], self.latest[node] + 1)

    def further(self, node: int) -> range:
        """The intervals in which a further run can be."""
        return range(self.earliest[node], len(self.moments) + 1)


class DependencyOrder:
    """What of a step has to run before what, whatever the plan. The makers of what a node reads run
    ahead of its first run, the loss ahead of the backward. Ahead of the loss run those nodes of the
    forward that draw random numbers or run once, since they write buffers or read what is written.
    """

    def __init__(self, problem: PlanningGraph) -> None:
        self.problem = problem
        self.makers = [self._makers(position) for position in range(len(problem.nodes))]
        self.before: list[int] = []
        for makers in self.makers:
            before = 0
            for maker in makers:
                before |= self.before[maker] | 1 << maker
            self.before.append(before)

    def _makers(self, position: int) -> list[int]:
        node, storages = self.problem.nodes[position], self.problem.storages
        makers = {storages[storage].producer for storage in node.inputs} - {-1}
        if node.phase == "backward":
            makers.add(self.problem.loss)
        if node.phase == "loss":
            makers |= {
                place
                for place, earlier in enumerate(self.problem.nodes[:position])
                if earlier.random or not earlier.repeatable
            }
        return sorted(makers)

    def precedes(self, one: int, other: int) -> bool:
        """Whether a node first runs before another one in every plan."""
        return bool(self.before[other] >> one & 1)

    @cached_property
    def chain(self) -> list[int]:
        """The backward nodes, ahead of them the loss, of the dependency chain through the loss
        that takes the most seconds."""
        loss = self.problem.loss
        found = self._heaviest(lambda maker: maker == loss or self.precedes(loss, maker))
        return found[found.index(loss) :]

    @cached_property
    def forward(self) -> list[int]:
        """The nodes of the dependency chain to the loss that takes the most seconds."""
        loss = self.problem.loss
        return self._heaviest(lambda maker: self.precedes(maker, loss), loss)

    def _heaviest(self, through: Callable[[int], bool], last: int | None = None) -> list[int]:
        """The dependency chain that takes the most seconds, of nodes that it may go through, to a
        last one or to where it takes the most from the loss on."""
        nodes, loss = self.problem.nodes, self.problem.loss
        heaviest: list[float] = []
        source: list[int] = []
        end = loss if last is None else last
        for position, makers in enumerate(self.makers):
            known = [maker for maker in makers if through(maker)]
            best = max(known, key=lambda maker: heaviest[maker], default=-1)
            heaviest.append(nodes[position].seconds + (heaviest[best] if best >= 0 else 0.0))
            source.append(best)
            if last is None and best >= 0 and heaviest[position] > heaviest[end]:
                end = position
        found = [end]
        while source[found[-1]] >= 0:
            found.append(source[found[-1]])
        return found[::-1]

    def intervals(self, moments: Sequence[int]) -> TimeWindows:
        """The intervals between nodes of which each precedes the next."""
        count = len(moments)
        earliest, latest = [0] * len(self.makers), [count] * len(self.makers)
        for number, moment in reversed(list(enumerate(moments))):
            for node in range(len(self.makers)):
                if self.precedes(node, moment):
                    latest[node] = number
        for number, moment in enumerate(moments, 1):
            for node in range(len(self.makers)):
                if node == moment or self.precedes(moment, node):
                    earliest[node] = number
            latest[moment] = number
        return TimeWindows(tuple(moments), earliest, latest, self.before)
