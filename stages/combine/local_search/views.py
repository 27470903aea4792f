"""What views a step makes, and makes again where their storages are made again.

A view is made before it is first read, with those that it is a view of, and is gone with the life
of its storage: after that was made again, what is read of it then is made again, too
(`stages.combine.lowering.schedule`). What comes back from an offload target does so with its views.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.recompute_variants import execution_inputs
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph

MAX_TIMED_VIEWS = 62
"""Of a storage with more views those that take the longest count."""


@dataclass(frozen=True)
class ViewTimes:
    """The views that take time: by storage the `seconds` of each; by position, for the `first` run
    and for `further` runs, which of them a run reads of each of its inputs, as bits; the same where
    it runs again as it did first. The nodes at the positions `brings` bring back what they make,
    where it was made before."""

    seconds: list[list[float]]
    first: list[list[int]]
    further: list[list[int]]
    brings: frozenset[int] = frozenset()

    def once(self, problem: PlanningGraph) -> float:
        """The seconds of all that first runs read, once each."""
        read = [0] * len(self.seconds)
        for node, row in zip(problem.nodes, self.first, strict=False):
            for storage, bits in zip(node.inputs, row, strict=True):
                read[storage] |= bits
        return sum(
            each
            for bits, seconds in zip(read, self.seconds, strict=True)
            for place, each in enumerate(seconds)
            if bits >> place & 1
        )

    def seconds_by_run(self, problem: PlanningGraph, sequence: Sequence[int]) -> list[float]:
        """The seconds of the views that are made for each run of a sequence of positions."""
        seen: set[int] = set()
        made = [0] * len(self.seconds)
        found = []
        for position in sequence:
            repeated = position in seen
            seen.add(position)
            form = problem.variant_at(position, repeated)
            seconds = 0.0
            read = (self.further if repeated else self.first)[position]
            for storage, bits in zip(form.inputs, read, strict=True):
                new = bits & ~made[storage]
                made[storage] |= bits
                own = enumerate(self.seconds[storage] if new else ())
                seconds += sum(each for place, each in own if new >> place & 1)
            for storage in form.outputs if position not in self.brings else ():
                made[storage] = 0
            found.append(seconds)
        return found

    def moved(self, transfers: int) -> ViewTimes:
        """Those of the step with so many storages that may leave: behind its nodes, which have no
        alternatives, it has two for each, one that reads it as it is and one that brings it back
        (`stages.combine.activation_offload.timed_search`)."""
        own = len(self.first)
        more = [[0], []] * transfers
        comes = frozenset(range(own + 1, own + 2 * transfers, 2))
        return ViewTimes(self.seconds, self.first + more, self.further + more, comes)

    def with_prices(self, nodes: Collection[int]) -> ViewTimes:
        """Those of the step in which further runs of some nodes read nothing, and bring back what
        they made (`stages.combine.activation_offload.pricing`)."""
        further = [[] if at in nodes else row for at, row in enumerate(self.further)]
        return replace(self, further=further, brings=frozenset(nodes))

    def shared(self, problem: PlanningGraph) -> list[float]:
        """By storage, the seconds of the views that all runs read which read it."""
        common: dict[int, int] = {}
        for repeated, rows in ((False, self.first), (True, self.further)):
            for position, row in enumerate(rows):
                inputs = problem.variant_at(position, repeated).inputs
                for storage, bits in zip(inputs, row, strict=True):
                    common[storage] = common.get(storage, -1) & bits
        return [
            sum(each for place, each in enumerate(seconds) if common.get(storage, 0) >> place & 1)
            for storage, seconds in enumerate(self.seconds)
        ]


def untimed_views(problem: PlanningGraph) -> ViewTimes:
    """Those of a problem whose views take no time."""
    read = [
        [[0] * len(problem.variant_at(position, repeated).inputs) for position in problem.positions]
        for repeated in (False, True)
    ]
    return ViewTimes([[] for _ in problem.storages], read[0], read[1])


def build_view_times(graph: Graph, costs: Costs, problem: PlanningGraph) -> ViewTimes:
    """The views of a whole step; `problem` is the graph condensed."""
    reader = _ViewReader(graph, costs, problem)
    first = [reader.row(position, False) for position in problem.positions]
    further = [reader.row(position, True) for position in problem.positions]
    return ViewTimes(reader.seconds, first, further)


class _ViewReader:
    """Finds what views values are; `seconds` as in `ViewTimes`."""

    def __init__(self, graph: Graph, costs: Costs, problem: PlanningGraph) -> None:
        self.graph = graph
        self.problem = problem
        views = graph.view_ops()
        self.maker = {value: op.id for value, op in graph.makers().items() if op.id in views}
        cost = {op: costs.of(graph, graph.ops[op]).seconds for op in sorted(views)}
        timed: list[list[int]] = [[] for _ in problem.storages]
        for op, seconds in cost.items():
            if seconds > 0:
                timed[self._storage(op)].append(op)
        for storage, ops in enumerate(timed):
            timed[storage] = sorted(sorted(ops, key=lambda op: -cost[op])[:MAX_TIMED_VIEWS])
        self.seconds = [[cost[op] for op in ops] for ops in timed]
        self.bit = {op: 1 << place for ops in timed for place, op in enumerate(ops)}
        self.above: dict[int, int] = {}
        for op in cost:
            self.above[op] = self.bit.get(op, 0)
            for source in self._sources(op):
                self.above[op] |= self.above[source]

    def row(self, position: int, repeated: bool) -> list[int]:
        """What a run reads of each of its inputs; the loss also makes all outputs."""
        op = self.graph.op(self.problem.op_at(position))
        read: Sequence[int] = execution_inputs(self.graph, op, repeated)
        if op.target == LOSS_TARGET:
            read = [*read, *self.graph.output_values()]
        found: dict[int, int] = {}
        for value in read:
            if value in self.maker:
                storage = self.graph.values[value].storage
                found[storage] = found.get(storage, 0) | self.above[self.maker[value]]
        inputs = self.problem.variant_at(position, repeated).inputs
        return [found.get(storage, 0) for storage in inputs]

    def _storage(self, op: int) -> int:
        values = self.graph.values
        return next(
            values[value].storage for value in self.graph.ops[op].outputs if value != NO_VALUE
        )

    def _sources(self, op: int) -> list[int]:
        """The views that a view is a view of; they are made ahead of it in the captured order."""
        storage, values = self._storage(op), self.graph.values
        return [
            self.maker[value]
            for value in self.graph.ops[op].inputs
            if value in self.maker and values[value].storage == storage
        ]
