"""A second plan of a step with dynamic shapes, for calls of small sizes.

A plan is made at the largest sizes and may recompute what a smaller call has room for. The second
one is chosen for the largest of the small sizes, within the bytes of the first: from the plans of
the frontier as they are at these sizes, and by a search from there.
"""

from __future__ import annotations

from dataclasses import replace

from tightfit.schemas.costs import Costs
from tightfit.schemas.dynamic_plan import SmallSizesPlan
from tightfit.schemas.frontier import TIME_TOLERANCE, Frontier, ParetoPoint, pareto_points
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.plan import Plan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound, time_lower_bound
from tightfit.stages.combine.dynamic_peaks import predict_dynamic_peaks
from tightfit.stages.combine.memory_budget import BudgetAccounting
from tightfit.stages.combine.select_plan import select_plan
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.progress import ProgressCallback
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

Selected = tuple[Plan, ParetoPoint | None, list[ScheduleStep]]
"""A plan with its point and its schedule, as `select_plan` gives them."""


def add_small_sizes_plan(
    graph: Graph,
    costs: Costs,
    frontier: Frontier,
    selected: Selected,
    search: bool = True,
    engine: SolverEngine = HIGHS_ENGINE,
    report: ProgressCallback | None = None,
) -> tuple[Plan, list[ScheduleStep]]:
    """A plan with what it says of a second one, and the schedule of that one.

    There is none, and the schedule is empty, where one plan is asked for, where the first has
    nothing to recompute, and where the second takes no less time at the largest small sizes.

    Args:
        graph: The graph at the largest sizes.
        costs: Its costs, with those of its ops at the largest small sizes.
        frontier: The frontier that the first plan was selected from.
        selected: The first plan with its point and its schedule.
        search: Whether to search for plans that are faster than the frontier's.
        engine: Solves the programs of bounds.
        report: Is told of each search.

    Raises:
        ModelError: A plan takes more bytes at smaller sizes.
    """
    plan, point, steps = selected
    if graph.dynamic is None or not graph.dynamic.small_sizes:
        return plan, []
    if point is None or plan.peak is None or plan.budget_total is None or not plan.recomputed:
        return plan, []
    sizes = graph.dynamic.small_sizes
    own = graph_at(graph, sizes)
    problem = build_planning_graph(own, costs)
    accounting = BudgetAccounting.of_step(own, costs, problem)
    total = plan.budget_total
    if not accounting.counts_reserved_bytes:
        total = min(total, accounting.fixed.bytes_before_step + plan.peak)
    points = _small_frontier(accounting, frontier, point)
    given = (points, str(total), search, total, engine, report)
    second, _, found = select_plan(own, costs, problem, *given)
    first_time = simulate(own, costs, steps).seconds
    if second.time is None or second.peak is None:
        return plan, []
    if second.time >= first_time * (1 - TIME_TOLERANCE):
        return plan, []
    small = SmallSizesPlan(dict(sizes), second.peak, second.time, first_time)
    dynamic = predict_dynamic_peaks(graph, costs, steps, plan.peak, (small, found))
    assert dynamic is not None
    share = f"{first_time / second.time:.3f} times as long"
    said = f"{dynamic.describe_small()} run a second plan, as the first would take {share}"
    return replace(plan, dynamic=dynamic, message=f"{plan.message}; {said}"), found


def _small_frontier(
    accounting: BudgetAccounting, frontier: Frontier, selected: ParetoPoint
) -> Frontier:
    """The plans of a frontier, and the `selected` one, as they are at small sizes: all graphs of
    one step have the same ops, so that each plan of one is a plan of the others."""
    player = accounting.player
    known = [point for point in frontier.points if point is not selected]
    points = [player.with_simulated_cost(point) for point in (*known, selected)]
    graph, costs, problem = player.graph, player.costs, player.opener.problem
    keep_all = simulate(graph, costs, player.keep_all_steps())
    return replace(
        frontier,
        keep_all_peak=keep_all.peak,
        keep_all_seconds=keep_all.seconds,
        lower_bound_peak=peak_lower_bound(problem),
        lower_bound_seconds=time_lower_bound(graph, costs, problem, keep_all.peak),
        points=pareto_points(points),
        optimal_in="",
    )
