"""Refines the plan for one budget: a frontier has plans for a grid of budgets, which lie a few
percent below the one that is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import Frontier, ParetoPoint
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import PlanCost
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.activation_offload.search import (
    FULL_EFFORT,
    TRIAL_EFFORT,
    SearchEffort,
    TransferSearch,
    frees_offloads_early,
    neighboring_points,
    transfer_point,
)
from tightfit.stages.combine.bounds.lower_bounds import total_view_seconds
from tightfit.stages.combine.local_search.search import MAX_SEARCHES, AnnealedSequence, LocalSearch
from tightfit.stages.combine.local_search.views import ViewTimes, build_view_times
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.simulate import SimulationResult, simulate
from tightfit.util.errors import ArtifactError
from tightfit.util.progress import ProgressCounter
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

NEIGHBORS_PER_SIDE = 2
"""How many points on either side of the budget the search starts from."""


@dataclass(frozen=True)
class PointSimulator:
    """Simulates plans of a frontier, which must say of them what comes out."""

    graph: Graph
    costs: Costs
    opener: ScheduleLowering
    link: HostLink | None = None

    @cached_property
    def views(self) -> ViewTimes:
        """The views of the step."""
        return build_view_times(self.graph, self.costs, self.opener.problem)

    @cached_property
    def local_search(self) -> LocalSearch:
        """What searches for plans of the step."""
        return LocalSearch(self.opener.problem, self.views)

    @cached_property
    def _checked(self) -> dict[int, ParetoPoint]:
        """Points of which the simulator says what they do, by their identity."""
        return {}

    def played(self, point: ParetoPoint) -> SimulationResult:
        """The simulation of a point; raises ArtifactError where the frontier says something
        else."""
        found = self._simulate_point(point)
        _check_cost("a plan", PlanCost(point.seconds, point.peak), found)
        self._checked[id(point)] = point
        return found

    def check(self, point: ParetoPoint) -> None:
        """Raises ArtifactError where a point costs something else than the frontier says."""
        if id(point) not in self._checked:
            self.played(point)

    def check_keep_all(self, said: PlanCost) -> None:
        """Raises ArtifactError where the captured order costs something else."""
        found = simulate(self.graph, self.costs, self.keep_all_steps())
        _check_cost("keeping everything", said, found)

    def keep_all_steps(self) -> list[ScheduleStep]:
        """The schedule of the captured order, which keeps everything."""
        captured = [node.op for node in self.opener.problem.nodes]
        return self.opener.schedule(captured, in_place=False)

    def with_simulated_cost(self, point: ParetoPoint) -> ParetoPoint:
        """A point with the peak and the seconds that the simulator finds."""
        found = self._simulate_point(point)
        costing = replace(point, peak=found.peak, seconds=found.seconds)
        self._checked[id(costing)] = costing
        return costing

    def _simulate_point(self, point: ParetoPoint) -> SimulationResult:
        return simulate(self.graph, self.costs, self.opener.opened(point), link=self.link)


def max_refinement_searches(link: HostLink | None) -> int:
    """How many searches `refined` makes at most, with a link or without."""
    return MAX_SEARCHES + (FULL_EFFORT.most if link is not None else 0)


def refine_point(
    player: PointSimulator,
    frontier: Frontier,
    budget: int,
    sequences: Sequence[Sequence[int]] = (),
    least: float = math.inf,
    engine: SolverEngine = HIGHS_ENGINE,
    brief: bool = False,
    told: ProgressCounter | None = None,
) -> ParetoPoint | None:
    """The frontier's point within a budget in bytes or, where that is faster, what a search finds
    from the points without transfers around the budget and from further `sequences` of node
    positions, and with a link what is found from there, by an `engine`. With `least`, seconds that
    no plan goes below, the search is patient where it is not near to them; a `brief` one is for one
    of a few budgets that are tried for one that is asked for.

    What is found counts as a plan that comes from the frontier's point, of the least peak where
    none fits. None where neither has one. Raises ArtifactError where a point costs something else
    than it says. Each search is `told`, of `max_refinement_searches` at most.
    """
    told = told or ProgressCounter()
    within, plain = frontier.within(budget), frontier.without_transfers
    if not plain:
        return within
    above = [point for point in plain if point.peak > budget][-NEIGHBORS_PER_SIDE:]
    below = [point for point in plain if point.peak <= budget][:NEIGHBORS_PER_SIDE]
    for point in (*above, *below):
        player.check(point)
    found_by = (
        _search_briefly
        if brief
        else partial(_search_thoroughly, sequences=sequences, least=least, told=told)
    )
    searched = _search_without_transfers(player, below, above, budget, found_by)
    found = [point for point in (within, searched) if point is not None and point.peak <= budget]
    if player.link is not None:
        given = neighboring_points(frontier.points, budget)
        around = [*below, *above]
        effort = TRIAL_EFFORT if brief else FULL_EFFORT
        linked = _search_with_transfers(
            player, player.link, searched, around, budget, effort, given, engine, told
        )
        found += [point for point in linked if point.peak <= budget]
    return min(found, key=lambda point: point.seconds, default=None)


def _search_without_transfers(
    player: PointSimulator,
    below: Sequence[ParetoPoint],
    above: Sequence[ParetoPoint],
    budget: int,
    found_by: Callable[[PointSimulator, Sequence[Sequence[int]], int], AnnealedSequence],
) -> ParetoPoint:
    """What a search finds within a budget from the points below and above it, without transfers."""
    problem, positions = player.opener.problem, player.opener.positions
    starts = [[positions[op] for op in point.executions] for point in (*below, *above)]
    found = found_by(player, starts, budget)
    return player.with_simulated_cost(
        replace(
            below[0] if below else above[-1],
            local_search=True,
            in_place=True,
            in_place_threshold=found.ceiling,
            actions=run_actions(problem, [problem.op_at(place) for place in found.sequence]),
        )
    )


def _search_thoroughly(
    player: PointSimulator,
    starts: Sequence[Sequence[int]],
    budget: int,
    sequences: Sequence[Sequence[int]],
    least: float,
    told: ProgressCounter,
) -> AnnealedSequence:
    problem = player.opener.problem
    # The search leaves out views that are made once in each plan: of parameters and of gradients.
    uncounted = total_view_seconds(player.graph, player.costs) - player.views.once(problem)
    return player.local_search.refine(starts, budget, least - uncounted, sequences, told)


def _search_briefly(
    player: PointSimulator, starts: Sequence[Sequence[int]], budget: int
) -> AnnealedSequence:
    local_search = player.local_search
    return local_search.beside(
        [local_search.evaluate(start, budget, None) for start in starts], budget
    )


def _search_with_transfers(
    player: PointSimulator,
    link: HostLink,
    searched: ParetoPoint,
    around: Sequence[ParetoPoint],
    budget: int,
    effort: SearchEffort,
    given: Sequence[ParetoPoint],
    engine: SolverEngine,
    told: ProgressCounter,
) -> list[ParetoPoint]:
    """What is found with transfers within a budget, from the best without and the points around,
    and from those with transfers that are `given`."""
    problem, early = player.opener.problem.plain, frees_offloads_early(player.costs)
    views = build_view_times(player.graph, player.costs, problem)
    linker = TransferSearch(
        problem, link, offloadable_values(player.graph, problem), early, engine, views
    )
    starts = [player.opener.plain_positions(point.executions) for point in (searched, *around)]
    placed = linker.plan(budget, starts, effort, [point.actions for point in given], told)
    if placed is None:
        return []
    actions = linker.placer.actions(placed)
    point = transfer_point(searched, actions, placed.ceiling, PlanCost(placed.seconds, budget))
    return [player.with_simulated_cost(point)]


def _check_cost(what: str, said: PlanCost, found: SimulationResult) -> None:
    if (said.peak, said.time) != (found.peak, found.seconds):
        raise ArtifactError(
            f"the frontier says that {what} takes {said.peak:,} bytes and {said.time:g} s, where "
            f"the simulator finds {found.peak:,} bytes and {found.seconds:g} s: it was made with "
            f"other costs, or changed since"
        )
