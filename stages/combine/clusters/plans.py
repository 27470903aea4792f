"""Plans of a whole step by the options of the clusters of its highest level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.bounds import least_peak
from tightfit.stages.combine.clusters.cluster import clusters_of, throughout
from tightfit.stages.combine.clusters.options import Grid, Options
from tightfit.stages.combine.clusters.sequence import by_sequence
from tightfit.stages.combine.clusters.ways import tasks_of_clusters
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.unrolled.frontier import Solution, fastest, nodes_of, worth
from tightfit.stages.combine.unrolled.program import Chosen
from tightfit.stages.combine.unrolled.starts import all_again, all_kept, seconds_of
from tightfit.stages.combine.unrolled.tasks import Tasks, forward_stages
from tightfit.stages.replay.line import FASTEST, executions
from tightfit.stages.replay.unrolling import ProgramStage
from tightfit.stages.replay.useless import without_useless

BUDGETS = 12
LIMITS = Limits(gap=1e-3, nodes=20, checks=150)
"""Of the program of the highest level."""


@dataclass(frozen=True)
class ClusterPlan:
    """The positions of the nodes that a plan runs, and how it was found."""

    sequence: list[int]
    origin: str


def plans_of(
    problem: Problem, hierarchy: Hierarchy, grid: Grid | None = None, engine: Engine = HIGHS
) -> list[ClusterPlan]:
    """Plans of falling peaks, by the programs of an engine. The first two keep everything and make
    every cluster again, those of the dynamic program follow where the clusters of the highest level
    are a sequence; none of the others is slower within its budget than any of those that are within
    it, too."""
    whole = clusters_of(problem, hierarchy)
    if not whole.members:
        whole = replace(whole, members=(whole,))
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    first = [position[op] for op in hierarchy.prelude]
    lasting = throughout(problem)
    lasting |= {storage for node in first for storage in problem.nodes[node].outputs}
    grid = grid or Grid()
    options = Options(replace(grid, limits=replace(grid.limits, engine=engine)))
    tasks = tasks_of_clusters(problem, first, options.members(problem, whole), lasting)
    stages = forward_stages(tasks)
    known = [all_kept(tasks, stages), all_again(tasks, stages)]
    plans = [
        ClusterPlan(_sequence(problem, chosen), origin)
        for chosen, origin in zip(known, ("every cluster kept", "every cluster again"), strict=True)
    ]
    passed = list(by_sequence(tasks, stages, BUDGETS))
    for chosen in passed:
        origin = f"dynamic program, within {_cost(problem, chosen)[0]} bytes"
        plans.append(ClusterPlan(_sequence(problem, chosen), origin))
    for solution in _solutions(problem, tasks, stages, known, passed, engine):
        said = f"options of {len(whole.members)} clusters, within {solution.peak} bytes"
        plans.append(ClusterPlan(_sequence(problem, solution.chosen), f"{said}, {worth(solution)}"))
    return plans


def _solutions(
    problem: Problem,
    tasks: Tasks,
    stages: Sequence[ProgramStage],
    ends: Sequence[list[Chosen]],
    passed: Sequence[list[Chosen]],
    engine: Engine,
) -> Iterator[Solution]:
    """Solutions for evenly spread budgets between those of the `ends`, down to the first that has
    none; those of the dynamic program are starts, too."""
    known = [(_cost(problem, chosen), chosen) for chosen in ends]
    highest = known[0][0][0]
    least = min(cost[0] for cost, _ in known)
    least = min(least, max(least_peak(problem), least - (highest - least) // 3))
    known += [(_cost(problem, chosen), chosen) for chosen in passed]
    for number in range(1, BUDGETS + 1):
        budget = highest - (highest - least) * number // BUDGETS
        fitting = [(cost[1], place) for place, (cost, _) in enumerate(known) if cost[0] <= budget]
        start = None
        if fitting:
            seconds, place = min(fitting)
            start = Solution(known[place][1], budget, None, seconds, 0.0)
        solution = fastest(tasks, stages, budget, None, replace(LIMITS, engine=engine), start)
        if solution is None:
            return
        known.append((_cost(problem, solution.chosen), solution.chosen))
        yield solution


def _sequence(problem: Problem, chosen: Sequence[Chosen]) -> list[int]:
    return without_useless(problem, nodes_of(chosen))


def _cost(problem: Problem, chosen: Sequence[Chosen]) -> tuple[int, float]:
    """The peak of runs, and what the program counts as their seconds."""
    played = executions(problem, _sequence(problem, chosen), in_place=True, ceiling=FASTEST)
    return max(run.peak for run in played), seconds_of(chosen)
