"""Checkmate: a whole small step in captured order, as one integer program (Z 2.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.checkmate.milp import (
    CheckmateSolution,
    describe_optimality,
    executed_nodes,
    recompute_all_runs,
    solve_checkmate,
    total_run_seconds,
)
from tightfit.stages.combine.checkmate.tasks import (
    TaskGraph,
    build_node_tasks,
    forward_stages,
    full_stages,
)
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD, simulate_executions
from tightfit.stages.simulate.unroll import UnrolledStage
from tightfit.util.solver_engines import SolverEngine
from tightfit.util.strategies import STRATEGIES

MAX_OPS = 120
"""Ops of the largest step that is planned."""
MAX_RECOMPUTE_DECISIONS = 800
"""Further runs of the largest program in which any op may run again at any time."""
BUDGETS = 8
LIMITS = SolverLimits(gap=1e-4, nodes=50, checks=500)


class CheckmateStrategy:
    """The integer program of the whole step, at budgets spread over those that it can keep."""

    about = STRATEGIES["checkmate"]

    def supports(self, step: PlanningProblem) -> str:
        """A step of few ops."""
        count = len(step.problem.nodes)
        if count <= MAX_OPS:
            return ""
        return f"it has {count} ops, and an integer program of a whole step takes {MAX_OPS}"

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The captured order, and what the program finds for falling budgets."""
        problem = step.problem
        found = [(list(range(len(problem.nodes))), "captured order")]
        name, tasks, stages = _build_program(problem)
        for solution in _iterate_solutions(problem, tasks, stages, step.engine):
            said = f"{name}, within {solution.peak} bytes, {describe_optimality(solution)}"
            found.append((executed_nodes(solution.chosen), said))
        return [
            Candidate(run_actions(problem, [problem.nodes[node].op for node in nodes]), [], said)
            for nodes, said in found
        ]


STRATEGY = CheckmateStrategy()


def _build_program(problem: PlanningGraph) -> tuple[str, TaskGraph, list[UnrolledStage]]:
    tasks = build_node_tasks(problem)
    stages = full_stages(tasks)
    if sum(len(stage.candidates) for stage in stages) <= MAX_RECOMPUTE_DECISIONS:
        return "any op again at any time", tasks, stages
    return "ops of the forward again after the loss", tasks, forward_stages(tasks)


def _iterate_solutions(
    problem: PlanningGraph, tasks: TaskGraph, stages: Sequence[UnrolledStage], engine: SolverEngine
) -> Iterator[CheckmateSolution]:
    """Solutions of falling peaks, evenly spread, down to the first budget that has none. A program
    starts from making everything again, where that is within its budget."""
    highest = peak = _peak_bytes(problem, range(len(problem.nodes)))
    least = peak_lower_bound(problem)
    known = recompute_all_runs(tasks, stages)
    limits = replace(LIMITS, engine=engine)
    start = CheckmateSolution(
        known, _peak_bytes(problem, executed_nodes(known)), None, total_run_seconds(known), 0.0
    )
    for number in range(1, BUDGETS + 1):
        budget = min(highest - (highest - least) * number // BUDGETS, peak - 1)
        if budget < least:
            return
        fits = start if start.peak <= budget else None
        solution = solve_checkmate(tasks, stages, budget, None, limits, fits)
        if solution is None:
            return
        peak = _peak_bytes(problem, executed_nodes(solution.chosen))
        yield solution


def _peak_bytes(problem: PlanningGraph, sequence: Sequence[int]) -> int:
    return max(
        run.peak
        for run in simulate_executions(
            problem, sequence, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
        )
    )
