"""What every plan with transfers takes at least, and where to start looking for one: the program
with a link (`program`) at the moments that ask for the most."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.activation_offload.pricing import (
    PrefetchableNode,
    PricedProblem,
    price_prefetches,
    split_prefetches,
)
from tightfit.stages.combine.bounds.cut_program import (
    CutProgram,
    sequence_from_solution,
    total_node_seconds,
)
from tightfit.stages.combine.bounds.cuts import (
    BATCHED_CUTS_SIZE,
    CUT_WORK,
    MAX_CUTS,
    MIN_CUT_GAIN,
    CutBoundSolver,
    TimeBound,
)
from tightfit.stages.combine.bounds.time_windows import DependencyOrder
from tightfit.stages.combine.bounds.transfer_bound import time_lower_bound_with_transfers
from tightfit.stages.combine.milp import (
    ONE_TERM,
    ZERO_TERM,
    LinearTerm,
    MilpProgram,
    SolverLimits,
    solve_milp,
)

LINK_POINTS = 24
"""At how many nodes of the forward the link is looked at."""
MAX_TRANSFER_STEPS = 16.0
"""A transfer counts as no more than so many steps, which keeps the figures near each other."""


class TransferCutProgram(CutProgram):
    """The program of a problem at the first runs of some nodes from the loss on, each of which
    depends on the one before, for a budget in bytes and storages that may leave. The value of
    `matrix` is in shares of `unit` seconds. With `whole`, storages come back whole, else parts of
    them may."""

    def __init__(
        self,
        problem: PlanningGraph,
        order: DependencyOrder,
        moments: Sequence[int],
        budget: int,
        link: HostLink,
        leaving: Collection[int],
        whole: bool = False,
    ) -> None:
        self.link = link
        self.leaving = leaving
        self.whole = whole
        self.back: dict[tuple[int, int], LinearTerm] = {}
        self.gone: dict[tuple[int, int], LinearTerm] = {}
        super().__init__(problem, order.intervals(moments), budget)
        for storage in {storage: None for storage, _ in self.back}:
            self._add_gone(storage)
        self._add_clocks(order)
        for number in range(1, self.last + 1) if math.isfinite(link.room) else ():
            away = [
                (-float(problem.storages[storage].bytes), term)
                for (storage, when), term in self.gone.items()
                if when == number
            ]
            self.matrix.at_least(-link.room, away, unit=max(link.room, 1.0))

    def _add_kept(self, storage: int) -> None:
        maker = self.problem.storages[storage].producer
        for interval in range(1, self.last + 1) if storage in self.leaving else ():
            before = self._first_up_to(maker, interval - 1)
            if before:
                term = self.matrix.binary() if self.whole else self.matrix.share()
                self.matrix.add_implication(term, before)
                self.back[storage, interval] = term
                self.gone[storage, interval] = self.matrix.share()
        super()._add_kept(storage)

    def _makes(
        self, storage: int, interval: int, runs: dict[tuple[int, int], LinearTerm]
    ) -> list[LinearTerm]:
        found = super()._makes(storage, interval, runs)
        back = self.back.get((storage, interval))
        return found if back is None else [*found, back]

    def _add_lifetime(self, after: LinearTerm, storage: int, interval: int) -> None:
        if storage not in self.leaving:
            super()._add_lifetime(after, storage, interval)
            return
        begun = [self.kept.get((storage, interval), ZERO_TERM)]
        begun += self._makes(storage, interval, self.further)
        for claim in (after, *self.overwritten.get((storage, interval), ())):
            if claim is not ZERO_TERM and ONE_TERM not in begun:
                self.matrix.add_implication(claim, begun)

    def _may_return(self, storage: int) -> bool:
        """Its copy may come back, also within the interval in which it was sent."""
        return storage in self.leaving

    def _prefetch_terms(self, storage: int, number: int) -> list[LinearTerm]:
        """That it was gone at the moment: else it is made before it can be sent and come back."""
        return [self.gone[storage, number]] if (storage, number) in self.gone else []

    def _add_gone(self, storage: int) -> None:
        """Whether a storage is gone at each moment."""
        later = ZERO_TERM
        for number in range(self.last, 0, -1):
            back = self.back.get((storage, number))
            if back is None:
                return
            made = super()._makes(storage, number, self.further)
            there = [(1.0, term) for term in (self.kept.get((storage, number), ZERO_TERM), *made)]
            term = self.gone[storage, number]
            self.matrix.add_implication(back, [term])
            self.matrix.at_least(0.0, [(1.0, term), *there, (-1.0, later)])
            later = term

    def _add_clocks(self, order: DependencyOrder) -> None:
        """The time of all intervals, which is the value in place of the seconds of all runs."""
        matrix, parts = self.matrix, self._runs_by_interval()
        if self.link.overhead or self.link.overhead_per_byte:
            self._add_overheads(parts)
        matrix.cost = [0.0] * len(matrix.cost)
        most = sum(abs(share) for runs in parts for share, _ in runs)
        most += sum(self._share(storage) for storage, _ in (*self.back, *self.gone))
        clocks = [matrix.share(1.0, most) for _ in parts]
        for clock, runs in zip(clocks, parts, strict=True):
            matrix.at_least(0.0, [(1.0, clock), *((-share, term) for share, term in runs)])
        for number in range(1, self.last + 1):
            since = [moved for moved in self.back.items() if moved[0][1] >= number]
            self._takes(clocks[number:], since)
            self._takes(clocks[:number], [m for m in self.gone.items() if m[0][1] == number])
        for ready, behind in self._points(order):
            late = [
                (-self._share(storage), term)
                for (storage, number), term in self.gone.items()
                if number == 1 and behind >> self.problem.storages[storage].producer & 1
            ]
            matrix.at_least(ready, [(1.0, clocks[0]), *late])

    def _takes(
        self, clocks: Iterable[LinearTerm], moved: Iterable[tuple[tuple[int, int], LinearTerm]]
    ) -> None:
        """Adds the row that clocks together take at least as long as transfers."""
        sizes = [(-self._share(storage), term) for (storage, _), term in moved]
        self.matrix.at_least(0.0, [*((1.0, clock) for clock in clocks), *sizes])

    def _runs_by_interval(self) -> list[list[tuple[float, LinearTerm]]]:
        """What runs take in each interval, in shares of `unit`."""
        parts: list[list[tuple[float, LinearTerm]]] = [[] for _ in range(self.last + 1)]
        cost = self.matrix.cost
        for (position, interval), term in self.first.items():
            parts[interval].append((self.problem.nodes[position].seconds / self.unit, term))
        for (_, interval), found in self.over.items():
            parts[interval].extend((cost[term.column], term) for _, term in found)
        for (_, interval), term in self.runs.items():
            parts[interval].append((cost[term.column], term))
        return parts

    def _share(self, storage: int) -> float:
        seconds = self.link.seconds(self.problem.storages[storage].bytes)
        return min(seconds / self.unit, MAX_TRANSFER_STEPS)

    def _add_overheads(self, parts: Sequence[list[tuple[float, LinearTerm]]]) -> None:
        """Adds what transfers take of the computations in each interval, in shares of `unit`."""

        def share(storage: int) -> float:
            seconds = self.link.overhead_of(self.problem.storages[storage].bytes)
            return min(seconds / self.unit, MAX_TRANSFER_STEPS)

        for (storage, number), term in self.back.items():
            parts[number].append((share(storage), term))
        for (storage, number), term in self.gone.items():
            if number == 1:
                parts[0].append((share(storage), term))

    def _points(self, order: DependencyOrder) -> Iterator[tuple[float, int]]:
        """Some nodes of the forward that run ahead of the moment: when each has run at least, and a
        bit for it and for each of those that depend on it."""
        nodes = self.problem.nodes
        moment = self.intervals.moments[0]
        chain = [node for node in order.forward if order.precedes(node, moment)]
        for point in chain[:: max(len(chain) // LINK_POINTS, 1)]:
            ready = nodes[point].least_seconds
            behind = 1 << point
            for node in range(len(nodes)):
                if order.precedes(node, point):
                    ready += nodes[node].least_seconds
                elif order.precedes(point, node):
                    behind |= 1 << node
            yield ready / self.unit, behind


TransferWarmStart = tuple[list[int], list[tuple[int, int]]]
"""A sequence of node positions, and storages with the places in it ahead of which they come back;
it may exceed the budget."""


class TransferBoundSolver(CutBoundSolver):
    """The programs of one problem with a link over which some storages may leave."""

    def __init__(
        self,
        problem: PlanningGraph,
        link: HostLink,
        leaving: Collection[int],
        limits: SolverLimits | None = None,
    ) -> None:
        super().__init__(problem, limits)
        self.link = link
        self.leaving = leaving
        self._known: dict[int, _TightestBound] = {}

    def _program(
        self, moments: Sequence[int], budget: int, heaviest: int | None = None
    ) -> tuple[CutProgram, MilpProgram]:
        program = self._linked(moments, budget, whole=False)
        return program, program.matrix.sparse()

    def _linked(self, moments: Sequence[int], budget: int, whole: bool) -> TransferCutProgram:
        return TransferCutProgram(
            self.problem, self.order, moments, budget, self.link, self.leaving, whole
        )

    def bound(self, budget: int) -> TimeBound:
        """What every plan within a budget in bytes takes at least."""
        simple = time_lower_bound_with_transfers(self.problem, budget, self.link)
        closest = self._tightest_bound(budget)
        unit = total_node_seconds(self.problem)
        return TimeBound(max(simple, closest.bound * unit), [], closest.clock)

    def drafts(self, budget: int) -> list[list[int]]:
        """None: what a solution says of transfers is in `linked_drafts`."""
        return []

    def transfer_warm_starts(self, budget: int) -> list[TransferWarmStart]:
        """Starts for the search: of the first moment alone and of all that were looked at."""
        moments = self._tightest_bound(budget).moments
        found: list[TransferWarmStart] = []
        for some in dict.fromkeys((moments[:1], moments)):
            draft = self._draft(sorted(some), budget)
            found += [] if draft is None else [draft]
        return found

    def _tightest_bound(self, budget: int) -> _TightestBound:
        """The bound of the programs of ever more moments, each where what the last one decides
        exceeds the budget the most."""
        if budget not in self._known:
            self._known[budget] = self._look(budget)
        return self._known[budget]

    def _look(self, budget: int) -> _TightestBound:
        first, known = self._first(budget)
        moments: tuple[int, ...] = (first,)
        bound, clock, work, idle = known.bound, known.clock, CUT_WORK, 0
        while math.isfinite(bound):
            _, arrays = self._program(sorted(moments), budget)
            solved = solve_milp(arrays, self.limits)
            idle = idle + 1 if len(moments) > 1 and solved.bound < bound + MIN_CUT_GAIN else 0
            bound, clock = max(bound, solved.bound), clock or solved.clock
            work -= solved.iterations * len(arrays.cost)
            if idle or work < 0:
                break
            limit = min(
                MAX_CUTS, max(len(moments) + 1, BATCHED_CUTS_SIZE // len(self.problem.nodes))
            )
            more = self._next(sorted(moments), budget)[: limit - len(moments)]
            if not more:
                break
            moments = (*moments, *more)
        return _TightestBound(bound, moments, clock)

    def _next(self, moments: Sequence[int], budget: int) -> list[int]:
        """Where a draft exceeds the budget the most, between moments; none where it does not, or
        there is none."""
        found = self._decided(moments, budget)
        return [] if found is None else self._worst(found[1], budget, moments, found[0].problem)

    def _draft(self, moments: Sequence[int], budget: int) -> TransferWarmStart | None:
        found = self._decided(moments, budget)
        return None if found is None else split_prefetches(*found)

    def _decided(
        self, moments: Sequence[int], budget: int
    ) -> tuple[PricedProblem, list[int]] | None:
        """What the program of some moments decides where storages come back whole: a sequence of
        the problem with prices; None where it has no solution."""
        program = self._linked(moments, budget, whole=True)
        values = solve_milp(program.matrix.sparse(), self.limits).values
        if not len(values):
            return None
        back = {storage for (storage, _), t in program.back.items() if values[t.column] > 0.5}
        makers: dict[int, list[int]] = {}
        for storage in sorted(back):
            makers.setdefault(self.problem.storages[storage].producer, []).append(storage)
        chosen = [PrefetchableNode(node, storages, 0, 0.0) for node, storages in makers.items()]
        found = price_prefetches(self.problem, chosen, 0.0)
        return found, sequence_from_solution(program, values, found.problem)


@dataclass(frozen=True)
class _TightestBound:
    """A bound in shares of the step, the moments that it was found with in the order in which they
    were looked at, and whether the clock ended a solve."""

    bound: float
    moments: tuple[int, ...]
    clock: bool
