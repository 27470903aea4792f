"""Plans of a whole step by the options of the clusters of its highest level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.checkmate.milp import (
    CheckmateSolution,
    TaskRun,
    describe_optimality,
    executed_nodes,
    keep_all_runs,
    recompute_all_runs,
    solve_checkmate,
    total_run_seconds,
)
from tightfit.stages.combine.checkmate.tasks import TaskGraph, forward_stages
from tightfit.stages.combine.hierarchy.cluster_chain import plan_cluster_chain
from tightfit.stages.combine.hierarchy.cluster_options import ClusterGrid, ClusterOptionFinder
from tightfit.stages.combine.hierarchy.clusters import (
    build_cluster_tasks,
    build_clusters,
    lasting_storages,
)
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.simulate.liveness import (
    INFINITE_IN_PLACE_THRESHOLD,
    drop_unused_recomputes,
    simulate_executions,
)
from tightfit.stages.simulate.unroll import UnrolledStage
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

BUDGET_COUNT = 12
LIMITS = SolverLimits(gap=1e-3, nodes=20, checks=150)
"""Of the program of the highest level."""


@dataclass(frozen=True)
class ClusterPlan:
    """The positions of the nodes that a plan runs, and how it was found."""

    sequence: list[int]
    origin: str


def plan_clusters(
    problem: PlanningGraph,
    hierarchy: Hierarchy,
    grid: ClusterGrid | None = None,
    engine: SolverEngine = HIGHS_ENGINE,
) -> list[ClusterPlan]:
    """Plans of falling peaks, by the programs of an engine. The first two keep everything and make
    every cluster again, those of the dynamic program follow where the clusters of the highest level
    are a sequence; none of the others is slower within its budget than any of those that are within
    it, too."""
    whole = build_clusters(problem, hierarchy)
    if not whole.members:
        whole = replace(whole, members=(whole,))
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    first = [position[op] for op in hierarchy.prelude]
    lasting = lasting_storages(problem)
    lasting |= {storage for node in first for storage in problem.nodes[node].outputs}
    grid = grid or ClusterGrid()
    options = ClusterOptionFinder(replace(grid, limits=replace(grid.limits, engine=engine)))
    tasks = build_cluster_tasks(problem, first, options.members(problem, whole), lasting)
    stages = forward_stages(tasks)
    known = [keep_all_runs(tasks, stages), recompute_all_runs(tasks, stages)]
    plans = [
        ClusterPlan(_sequence(problem, chosen), origin)
        for chosen, origin in zip(known, ("every cluster kept", "every cluster again"), strict=True)
    ]
    passed = list(plan_cluster_chain(tasks, stages, BUDGET_COUNT))
    for chosen in passed:
        origin = f"dynamic program, within {_peak_and_seconds(problem, chosen)[0]} bytes"
        plans.append(ClusterPlan(_sequence(problem, chosen), origin))
    for solution in _solutions(problem, tasks, stages, known, passed, engine):
        said = f"options of {len(whole.members)} clusters, within {solution.peak} bytes"
        plans.append(
            ClusterPlan(
                _sequence(problem, solution.chosen), f"{said}, {describe_optimality(solution)}"
            )
        )
    return plans


def _solutions(
    problem: PlanningGraph,
    tasks: TaskGraph,
    stages: Sequence[UnrolledStage],
    ends: Sequence[list[TaskRun]],
    passed: Sequence[list[TaskRun]],
    engine: SolverEngine,
) -> Iterator[CheckmateSolution]:
    """Solutions for evenly spread budgets between those of the `ends`, down to the first that has
    none; those of the dynamic program are starts, too."""
    known = [(_peak_and_seconds(problem, chosen), chosen) for chosen in ends]
    highest = known[0][0][0]
    least = min(cost[0] for cost, _ in known)
    least = min(least, max(peak_lower_bound(problem), least - (highest - least) // 3))
    known += [(_peak_and_seconds(problem, chosen), chosen) for chosen in passed]
    for number in range(1, BUDGET_COUNT + 1):
        budget = highest - (highest - least) * number // BUDGET_COUNT
        fitting = [(cost[1], place) for place, (cost, _) in enumerate(known) if cost[0] <= budget]
        start = None
        if fitting:
            seconds, place = min(fitting)
            start = CheckmateSolution(known[place][1], budget, None, seconds, 0.0)
        solution = solve_checkmate(
            tasks, stages, budget, None, replace(LIMITS, engine=engine), start
        )
        if solution is None:
            return
        known.append((_peak_and_seconds(problem, solution.chosen), solution.chosen))
        yield solution


def _sequence(problem: PlanningGraph, chosen: Sequence[TaskRun]) -> list[int]:
    return drop_unused_recomputes(problem, executed_nodes(chosen))


def _peak_and_seconds(problem: PlanningGraph, chosen: Sequence[TaskRun]) -> tuple[int, float]:
    """The peak of runs, and what the program counts as their seconds."""
    played = simulate_executions(
        problem, _sequence(problem, chosen), in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    return max(run.peak for run in played), total_run_seconds(chosen)
