"""What every plan within a budget takes at least, and where to start looking for one: the program
(`program`) at the moments that ask for the most.

The first moment is the one of the heaviest dependency chain at which the relaxed program is worth
the most. Further ones are where the sequence of the solution (`draft`) exceeds the budget the most,
one between each two that there are, as long as the program stays small. Where a known plan is still
above what these prove, relaxed programs of more moments follow (`cut_refinement`). Every program's
bound holds, so that the best of them does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.bounds.cut_program import (
    CutProgram,
    min_recompute_seconds,
    sequence_from_solution,
    total_node_seconds,
)
from tightfit.stages.combine.bounds.cut_refinement import RefinedCutBound, refine_cuts
from tightfit.stages.combine.bounds.time_windows import DependencyOrder
from tightfit.stages.combine.local_search.views import ViewTimes
from tightfit.stages.combine.milp import (
    LinearExpression,
    MilpBuilder,
    MilpProgram,
    MilpSolution,
    SolverLimits,
    append_rows,
    solve_milp,
    solve_relaxation,
)
from tightfit.stages.simulate.liveness import simulate_executions

MAX_CUTS = 7
"""The most moments of one program."""
BATCHED_CUTS_SIZE = 5000
"""Moments times nodes up to which several moments are added at once."""
COARSE_PARTS = 8
"""Parts of the chain that are looked at first."""
CUT_WORK = 10_000_000
"""Iterations times columns, of all programs for a budget: a second or two. A program with so many
times the columns of the one before it is taken to be as much work, to the power of `GROWTH`."""
WORK_GROWTH = 3
FAR_GAP, FAR_WORK = 0.06, 60_000_000
"""The work where a known plan is more than this part of the time above the bound, and moments are
added even where they add nothing to that: what programs of many of them decide are starts from
which the search finds what it does not find elsewhere."""
TARGET_GAP = 0.02
"""What part of the time a known plan may be above the bound for it not to be widened."""
WARM_START_CUTS = 2
WARM_START_WORK = 1_000_000
"""The most moments, and the work, where only starts are asked for."""
MIN_CUT_GAIN, MIN_GAP_GAIN = 1e-4, 0.05
"""What a moment has to add to the bound for another one to follow, in shares of the step, and of
what a known plan takes beyond the bound."""
CLOSE_GAP = 1e-3
"""What part of the time a known plan may be above the bound for no moment to follow."""


@dataclass(frozen=True)
class TimeBound:
    """`seconds` is at most what any plan within a budget takes: inf where there is none, -inf where
    nothing is known. `clock` says that the clock, not the work, ended a solve: another run may find
    another bound. `sequences` are node positions to start a search from, found on the way, the last
    of the program with the most moments; they may exceed the budget."""

    seconds: float
    sequences: list[list[int]]
    clock: bool


class CutBoundSolver:
    """The programs of one problem; without `views` these take no time."""

    def __init__(
        self,
        problem: PlanningGraph,
        limits: SolverLimits | None = None,
        views: ViewTimes | None = None,
    ) -> None:
        self.problem = problem
        self.again = None if views is None else min_recompute_seconds(problem, views)
        self.limits = limits or SolverLimits()
        self.order = DependencyOrder(problem)
        self.chain = self.order.chain
        self.unit = total_node_seconds(problem)

    def solve_bound(
        self, budget: int, most: int = MAX_CUTS, work: int = CUT_WORK, known: float = math.inf
    ) -> TimeBound:
        """The bound and the starts for a budget in bytes, from programs of up to `most` moments; a
        moment is added as long as these together are within the `work`, and the bound is not near
        to the seconds of a plan that is `known`."""
        first, parts = self._first(budget)
        bound, clock = parts.bound, parts.clock
        program, arrays = self._program([first], budget, first)
        sequences: list[list[int]] = []
        spent = 0
        while math.isfinite(bound):
            solved = solve_milp(arrays, self.limits)
            before, bound, clock = bound, max(bound, solved.bound), clock or solved.clock
            if not len(solved.values):
                break
            sequence = sequence_from_solution(program, solved.values)
            sequences += [] if sequence in sequences else [sequence]
            moments = program.intervals.moments
            gap = (known - self._seconds(bound)) / self.unit
            needed = max(MIN_CUT_GAIN, MIN_GAP_GAIN * gap) if math.isfinite(gap) else MIN_CUT_GAIN
            far = FAR_GAP < gap < math.inf
            idle = len(moments) > 1 and bound < before + needed
            if gap <= CLOSE_GAP or (idle and not far):
                break
            columns = max(len(arrays.cost), 1)
            spent += solved.iterations * columns
            left = (max(work, FAR_WORK) if far else work) - spent
            limit = min(most, max(len(moments) + 1, BATCHED_CUTS_SIZE // len(self.problem.nodes)))
            worst = self._worst(sequence, budget, moments)[: limit - len(moments)]
            rate = solved.iterations / columns ** (WORK_GROWTH - 1)
            more = self._program_within_work((first, *moments), worst, budget, left, rate)
            if more is None:
                break
            program, arrays = more
        if sequences and TARGET_GAP < (known - self._seconds(bound)) / self.unit < math.inf:
            moments = program.intervals.moments
            wider = self._refine_cuts(moments, budget, first, sequences[-1], bound)
            bound, clock = wider.bound, clock or wider.clock
            sequences += [each for each in wider.sequences if each not in sequences]
        return TimeBound(self._seconds(bound), sequences, clock)

    def _refine_cuts(
        self, moments: Sequence[int], budget: int, first: int, sequence: list[int], bound: float
    ) -> RefinedCutBound:
        """A bound, raised by more moments than some, the `first` the heaviest."""

        def making(some: Sequence[int]) -> tuple[CutProgram, MilpProgram]:
            return self._program(some, budget, first)

        def asking(start: Sequence[int], some: Sequence[int]) -> list[int]:
            return self._worst(start, budget, some)

        return refine_cuts(making, asking, moments, sequence, bound, self.limits)

    def _seconds(self, bound: float) -> float:
        """A bound of programs in seconds."""
        return sum(node.seconds for node in self.problem.nodes) + self.unit * bound

    def _program_within_work(
        self, moments: Sequence[int], worst: list[int], budget: int, work: int, rate: float
    ) -> tuple[CutProgram, MilpProgram] | None:
        """The program with as many of the worst moments beside the others, of which the heaviest
        comes first, as are within some work, at a rate for columns to the power of `GROWTH`; None
        where there is none."""
        while worst and work > 0:
            program, arrays = self._program(sorted({*moments, *worst}), budget, moments[0])
            if rate * len(arrays.cost) ** WORK_GROWTH <= work:
                return program, arrays
            worst = worst[: len(worst) // 2]
        return None

    def _program(
        self, moments: Sequence[int], budget: int, heaviest: int | None = None
    ) -> tuple[CutProgram, MilpProgram]:
        intervals = self.order.intervals(moments)
        program = CutProgram(self.problem, intervals, budget, self.again, heaviest)
        return program, program.matrix.sparse()

    def _alone(self, moment: int, budget: int) -> MilpProgram:
        """The program of one moment."""
        return self._program([moment], budget)[1]

    def _first(self, budget: int) -> tuple[int, MilpSolution]:
        """The node of the chain whose first run, as the only moment, gives the highest bound when
        parts of everything are allowed, looked for ever closer around the best so far."""
        step = max(len(self.chain) // COARSE_PARTS, 1)
        found: dict[int, MilpSolution] = {}
        wanted = range(0, len(self.chain), step)
        while True:
            for index in wanted:
                if 0 <= index < len(self.chain) and index not in found:
                    arrays = self._alone(self.chain[index], budget)
                    found[index] = solve_relaxation(arrays, self.limits)
            best = max(found, key=lambda index: found[index].bound)
            if step == 1:
                return self.chain[best], found[best]
            step = max(step // 2, 1)
            wanted = range(best - step, best + step + 1, step)

    def _worst(
        self,
        sequence: Sequence[int],
        budget: int,
        moments: Sequence[int],
        problem: PlanningGraph | None = None,
    ) -> list[int]:
        """The nodes of the chain, one between each two moments, whose first runs exceed the budget
        the most, those that exceed it more first: on a chain, any nodes can be moments together.
        The `problem` is that in which the sequence runs, where it is another one."""
        runs = simulate_executions(problem or self.problem, sequence, in_place=True, ceiling=budget)
        first = {run.node: run.peak for run in runs if not run.repeated}
        found: list[int] = []
        between: list[int] = []
        for node in [*self.chain, None]:
            if node is not None and node not in moments:
                between.append(node)
                continue
            found += [max(between, key=lambda each: first[each])] if between else []
            between = []
        return sorted(
            (node for node in found if first[node] > budget), key=lambda node: -first[node]
        )

    def drafts(self, budget: int) -> list[list[int]]:
        """Starts for the search, for one of many budgets: with less work than a bound takes."""
        return self.solve_bound(budget, WARM_START_CUTS, WARM_START_WORK).sequences


class MultiBudgetCutBoundSolver(CutBoundSolver):
    """Those of many budgets. All of the programs of one moment but a row is made once."""

    def __init__(self, problem: PlanningGraph, limits: SolverLimits | None = None) -> None:
        super().__init__(problem, limits)
        self._known: dict[int, tuple[MilpProgram, MilpBuilder, LinearExpression]] = {}

    def _alone(self, moment: int, budget: int) -> MilpProgram:
        if moment not in self._known:
            program = CutProgram(self.problem, self.order.intervals([moment]), None)
            matrix = program.matrix
            self._known[moment] = matrix.sparse(), matrix.without_rows(), program.resident_terms(1)
        known, columns, terms = self._known[moment]
        rows = columns.without_rows()
        rows.at_least(self.problem.nodes[moment].peak - budget, terms, unit=max(budget, 1))
        return append_rows(known, rows)
