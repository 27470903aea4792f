"""Chooses the point of a frontier for a budget, and says what the choice is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import TIME_TOLERANCE, Frontier, ParetoPoint
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import CompetingPlan, Plan, PlanCost, Status, optimality_gap
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.activation_offload.bound import TransferBoundSolver
from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.bounds.cuts import TARGET_GAP, TimeBound
from tightfit.stages.combine.bounds.lower_bounds import (
    locate_peak_lower_bound,
    peak_lower_bound,
    prove_time_lower_bound,
    time_lower_bound,
    total_view_seconds,
)
from tightfit.stages.combine.bounds.transfer_bound import time_lower_bound_with_transfers
from tightfit.stages.combine.memory_budget import BudgetAccounting, describe_allocator_overhead
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.plan_summary import (
    describe_cost_source,
    describe_link_source,
    describe_loss_room,
    describe_peak,
    describe_peak_bound,
)
from tightfit.stages.combine.refine_plan import (
    PointSimulator,
    max_refinement_searches,
    refine_point,
)
from tightfit.stages.simulate.simulate import SimulationResult
from tightfit.util.budget import NO_BUDGET
from tightfit.util.progress import ProgressCallback, ProgressCounter
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

BOUND_SEARCHES = 1
"""Searches that a bound is counted as."""


def select_plan(
    graph: Graph,
    costs: Costs,
    problem: PlanningGraph,
    frontier: Frontier,
    budget: str,
    search: bool = True,
    total: int | None = None,
    engine: SolverEngine = HIGHS_ENGINE,
    report: ProgressCallback | None = None,
) -> tuple[Plan, ParetoPoint | None, list[ScheduleStep]]:
    """The plan for a budget as written, the point that it is, and its schedule with times and
    memory filled in; `total` are the bytes of the budget where these are another step's.

    The point is the frontier's or, with `search`, a faster one (`refine`), and the bound that of
    the programs of an `engine`; "none" takes the frontier's fastest. On CUDA it may be a slower
    one, whose reserved bytes are within the budget. When nothing fits, the status is `infeasible`,
    the point None and the schedule empty. `report` is told of each search that is done. Raises
    ConfigError when the budget is no size, or the costs are of settings of CUDA's allocator that
    are not followed, ArtifactError when the frontier does not say what the simulator finds of its
    plans.
    """
    in_all = BudgetAccounting.of_step(graph, costs, problem, frontier.link)
    elsewhere = total is not None
    if total is None and budget != NO_BUDGET:
        total = in_all.budget(budget, frontier)
    asked = _BudgetRequest(budget, total, in_all, frontier, elsewhere)
    in_all.player.check_keep_all(asked.keep_all)
    in_all.player.played(frontier.points[-1])
    rounds = 1 if asked.own is None or frontier.within(asked.own) else 2
    most = rounds * (BOUND_SEARCHES + max_refinement_searches(frontier.link)) + in_all.max_searches(
        frontier
    )
    told = ProgressCounter(report, most)
    first, limit = _select_within_budget(in_all.player, frontier, asked.own, search, engine, told)
    point = first
    if total is not None and in_all.counts_reserved_bytes:
        proven = limit.proven
        starts, least = ([], math.inf) if proven is None else (proven.sequences, proven.seconds)
        if search:
            point = replace(in_all, engine=engine, told=told).search_fitting_point(
                frontier, first, total, starts, least
            )
        else:
            point = in_all.fitting(frontier, total)
    if point is None:
        return asked.infeasible_plan(), None, []
    played = in_all.player.played(point)
    return asked.chosen(point, played, limit, point is first), point, played.steps


@dataclass(frozen=True)
class _BudgetRequest:
    """A budget as written, for the plans of a frontier; `total` are its bytes, None for none. A
    percentage is of another step where it is counted `elsewhere`."""

    budget: str
    total: int | None
    accounting: BudgetAccounting
    frontier: Frontier
    elsewhere: bool

    @property
    def own(self) -> int | None:
        """The bytes of the step alone."""
        return None if self.total is None else self.total - self.accounting.fixed.bytes_before_step

    @property
    def keep_all(self) -> PlanCost:
        """The step that keeps everything."""
        return PlanCost(self.frontier.keep_all_seconds, self.frontier.keep_all_peak)

    def infeasible_plan(self) -> Plan:
        """What is known where nothing fits."""
        in_all, frontier = self.accounting, self.frontier
        fixed, player = in_all.fixed, in_all.player
        least = in_all.least(frontier)
        smallest = in_all.of(least)
        last = player.played(least)
        memory = in_all.memory(last.steps, frontier, smallest - 1)
        parts = describe_peak(player.graph, last, fixed)
        room = in_all.keep_all(frontier) - fixed.floor
        in_share = self.budget.endswith("%") and not self.elsewhere
        fits = 0 <= smallest - fixed.floor <= room
        measure = _BudgetMeasure(fixed.floor, room if in_share and fits else 0)
        sentence = (
            f"infeasible: {measure.describe_budget(self.budget, self.total or 0)}, the smallest "
            f"budget known to work for {player.graph.model} with {frontier.strategy} is "
            f"{measure.format_sufficient(smallest)}; at the peak of the step these are "
            f"{parts}{describe_allocator_overhead(memory)}{self._describe_floor(measure, smallest)}"
            f"{describe_cost_source(player.graph, player.costs)}{_describe_time_limit(frontier)}"
        )
        return Plan(
            frontier.strategy, self.budget, self.total, self.own, "infeasible", sentence,
            smallest_budget=smallest, keep_all=self.keep_all, baseline=fixed, solver="none",
            gpu=memory, loss_room=player.graph.loss_room or None,
        )  # fmt: skip

    def _describe_floor(self, measure: _BudgetMeasure, smallest: int) -> str:
        """What no plan takes less than, and what asks for that; one that is known may take it."""
        player, fixed = self.accounting.player, self.accounting.fixed
        own, position = locate_peak_lower_bound(player.opener.problem)
        size = fixed.bytes_before_step + own
        if measure.room and size <= fixed.floor:
            return ""  # such a share would be 0%, which no plan takes less than either way
        than = "" if size == smallest else f" than {measure.format_necessary(size)}"
        what = describe_peak_bound(player.graph, player.opener.problem, position)
        return f"; no plan takes less{than}, {what}"

    def chosen(
        self, point: ParetoPoint, played: SimulationResult, limit: _TimeBound, is_first: bool
    ) -> Plan:
        """The plan that a point is; the frontier's or its refinement where it `is_first`, else one
        with fewer bytes in all."""
        in_all, frontier = self.accounting, self.frontier
        memory = in_all.memory(played.steps, frontier, self.total)
        bound, clock = limit.bound_for(played.seconds)
        gap = optimality_gap(played.seconds, bound)
        status: Status = "optimal" if gap <= TIME_TOLERANCE else "feasible"
        words = self._words(status, point, gap)
        source = describe_cost_source(in_all.player.graph, in_all.player.costs)
        said = f"{words}{_describe_transfers(played, frontier)}{source}"
        return Plan(
            strategy=frontier.strategy,
            budget=self.budget,
            budget_total=self.total,
            budget_bytes=self.own,
            status=status,
            message=f"{said}{_describe_time_limit(frontier)}{describe_allocator_overhead(memory)}{clock}",
            time=played.seconds,
            peak=played.peak,
            lower_bound=bound,
            gap=gap,
            optimal_in=_optimality_class(status, point, frontier, is_first),
            smallest_budget=min(in_all.of(frontier.points[-1]), in_all.of(point)),
            before_local_search=PlanCost(point.strategy_seconds, point.strategy_peak),
            keep_all=self.keep_all,
            baseline=in_all.fixed,
            recomputed=played.repeated,
            recomputed_time=played.repeated_seconds,
            solver="local search" if point.local_search else "none",
            gpu=memory,
            transfers=played.transfers,
            loss_room=in_all.player.graph.loss_room or None,
        )

    def _words(self, status: Status, point: ParetoPoint, gap: float) -> str:
        """A plan in words; its bytes are those of a budget, with what is there before the step."""
        there_before = self.accounting.fixed.bytes_before_step
        slower = point.seconds / self.frontier.keep_all_seconds
        most = math.ceil(gap * 1000) / 1000
        worth = "" if status == "optimal" else f", no plan is more than {most:.1%} faster"
        room = describe_loss_room(self.accounting.player.graph.loss_room)
        return (
            f"{status}: {there_before + point.peak:,} bytes in all{room} where keeping everything "
            f"takes {there_before + self.frontier.keep_all_peak:,}, {slower:.3f} times its "
            f"predicted time{worth}"
        )


@dataclass(frozen=True)
class _TimeBound:
    """What no plan within a budget goes below: in short, and closer where that was asked for."""

    simple_bound: float
    proven: TimeBound | None = None

    def bound_for(self, seconds: float) -> tuple[float, str]:
        """The limit of a plan that takes so many seconds, and what a message says of it.

        The simple one stands where the closer one is above the plan, which is then wrong: no plan
        is called optimal for it, and the message says so."""
        if self.proven is None:
            return min(self.simple_bound, seconds), ""
        if self.proven.seconds > seconds * (1 + TIME_TOLERANCE):
            said = "; the plan is below a closer bound, which is left out of the gap"
            return min(self.simple_bound, seconds), said
        clock = "; the clock, not the work, ended the search for a bound"
        return min(self.proven.seconds, seconds), clock if self.proven.clock else ""


def _select_within_budget(
    player: PointSimulator,
    frontier: Frontier,
    budget: int | None,
    search: bool,
    engine: SolverEngine,
    told: ProgressCounter,
) -> tuple[ParetoPoint | None, _TimeBound]:
    """The point for a budget, the frontier's fastest without one, with what limits it: the simple
    limit where a point meets it, which is not refined then, and where nothing is to be searched."""
    graph, costs, problem = player.graph, player.costs, player.opener.problem
    fastest = frontier.points[0]
    asked = fastest.peak if budget is None else budget
    point = fastest if budget is None else frontier.within(budget)
    link = frontier.link if frontier.link is not None and frontier.link.bandwidth > 0 else None
    if link is None:
        simple = time_lower_bound(graph, costs, problem, asked)
    else:
        simple = time_lower_bound_with_transfers(problem, asked, link) + total_view_seconds(
            graph, costs
        )
    met = point is not None and simple >= point.seconds * (1 - TIME_TOLERANCE)
    if met or not search or asked < peak_lower_bound(problem):
        return point, _TimeBound(simple)
    known = math.inf if point is None else point.seconds
    prove = partial(prove_time_lower_bound, graph, costs, problem, asked, engine)
    proven = prove(known)
    told()
    if budget is not None:
        look = partial(refine_point, player, frontier, budget, engine=engine, told=told)
        point = look(proven.sequences, least=proven.seconds)
        if point is not None and known == math.inf and _is_far_from_bound(point, proven):
            point, proven = _tighten_bound(point, proven, prove, look)
            told()
    if link is None:
        return point, _TimeBound(simple, proven)
    # The programs with a link know one form of a further run.
    closer = None if problem.alternatives else _prove_transfer_bound(player, link, asked, engine)
    return point, _TimeBound(simple, closer)


def _is_far_from_bound(point: ParetoPoint, proven: TimeBound) -> bool:
    """Whether a bound that no plan was known for is so far below one that it would be widened."""
    return optimality_gap(point.seconds, proven.seconds) > TARGET_GAP


def _tighten_bound(
    point: ParetoPoint,
    proven: TimeBound,
    prove: Callable[[float], TimeBound],
    look: Callable[..., ParetoPoint | None],
) -> tuple[ParetoPoint, TimeBound]:
    """A point and its bound once more, now that a plan is known: with the better bound, and with
    what the search finds from its further starts."""
    closer = prove(point.seconds)
    starts = [each for each in closer.sequences if each not in proven.sequences]
    best = max(proven, closer, key=lambda each: each.seconds)
    further = look(starts, least=best.seconds) if starts else None
    return min(filter(None, (point, further)), key=lambda each: each.seconds), best


def _prove_transfer_bound(
    player: PointSimulator, link: HostLink, budget: int, engine: SolverEngine
) -> TimeBound:
    """What no plan with transfers goes below."""
    problem = player.opener.problem
    given = offloadable_values(player.graph, problem)
    bound = TransferBoundSolver(problem, link, given, SolverLimits(engine=engine)).bound(budget)
    return TimeBound(
        bound.seconds + total_view_seconds(player.graph, player.costs), [], bound.clock
    )


def _optimality_class(status: Status, point: ParetoPoint, frontier: Frontier, asked: bool) -> str:
    """The class that a plan is optimal in: the strategy's only where the plan is its own, and the
    one for the bytes that were `asked`."""
    if status == "optimal":
        return "all plans of this graph"
    return frontier.optimal_in if point.is_strategy_plan and asked else ""


@dataclass(frozen=True)
class _BudgetMeasure:
    """Writes sizes as a budget was asked for: as a share of the `room` bytes above the `floor`, or
    in bytes if there is no room."""

    floor: int
    room: int

    def describe_budget(self, budget: str, total: int) -> str:
        """What was asked for, in the same measure."""
        if self.room:
            return f"{budget} is too small"
        size = f"{total:,} bytes" if total != 1 else "1 byte"
        return f"the budget is {size}" if budget.rstrip("B").isdigit() else f"{budget} is {size}"

    def format_sufficient(self, size: int) -> str:
        """A size as a budget that leaves so many bytes: a share is rounded up."""
        return self._format(size, -(-1000 * (size - self.floor) // (self.room or 1)) or 1)

    def format_necessary(self, size: int) -> str:
        """A size that is a lower bound: a share is rounded down."""
        return self._format(size, max(1000 * (size - self.floor) // (self.room or 1), 0))

    def _format(self, size: int, thousandths: int) -> str:
        return f"{thousandths / 10:g}%" if self.room else f"{size:,} bytes"


def _describe_transfers(played: SimulationResult, frontier: Frontier) -> str:
    """What a message says of transfers."""
    moved, link = played.transfers, frontier.link
    if moved is None or link is None:
        return ""
    waited, busy = (
        each / played.seconds if played.seconds else 0.0
        for each in (moved.wait_seconds, played.overhead)
    )
    taken = f", and transfers take {busy:.1%} of it from them" if busy else ""
    return (
        f"; {moved.offloaded_bytes:,} bytes wait in {link.other}, and computations wait for the "
        "link for "
        f"{waited:.1%} of the time{taken}{describe_link_source(link)}"
    )


def _describe_time_limit(frontier: Frontier) -> str:
    """What a message says where the clock decided: another run may come to another plan."""
    if not frontier.timed_out_solves:
        return ""
    return f"; the clock, not the work, ended {frontier.timed_out_solves} of the blocks' solves"


def is_better_plan(other: Plan, plan: Plan) -> bool:
    """Whether a plan of eager's kernels takes less time than one of fused ones, or fits alone; of
    two that do not fit, whether it is the one that would in fewer bytes."""
    if other.time is not None and plan.time is not None:
        return other.time < plan.time
    if other.feasible or plan.feasible or None in (other.smallest_budget, plan.smallest_budget):
        return other.feasible
    return other.smallest_budget < plan.smallest_budget  # type: ignore[operator]


def choose_kernels(plan: Plan, other: Plan) -> Plan:
    """Of a plan of fused kernels and the one of eager's for the same bytes, the one that is taken:
    for the budget that the first was asked for, and with the other one as its rival. Without a
    budget that is the plan of fused kernels."""
    if plan.budget == NO_BUDGET or not is_better_plan(other, plan):
        return replace(plan, competing_plan=competing_plan_of(other))
    said = other.message + _describe_kernel_choice(plan, other)
    return replace(other, budget=plan.budget, message=said, competing_plan=competing_plan_of(plan))


def competing_plan_of(plan: Plan) -> CompetingPlan:
    """What the other plan says of this one."""
    return CompetingPlan(
        kernels=plan.kernels or "eager",
        time=plan.time,
        peak=plan.peak,
        smallest_budget=plan.smallest_budget,
        keep_all_total=plan.keep_all_total,
    )


def _describe_kernel_choice(plan: Plan, other: Plan) -> str:
    """Why the plan is one of eager's kernels, for people."""
    if plan.time is None or other.time is None:
        return f"; with eager's kernels, as fused ones need {plan.smallest_budget:,} bytes"
    share = f"{plan.time / other.time:.3f}"
    return f"; with eager's kernels, as fused ones would take {share} times as long in these bytes"
