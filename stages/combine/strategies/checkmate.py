"""Checkmate: a whole small step in captured order, as one integer program (Z 2.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tightfit.schemas.engines import Engine
from tightfit.schemas.problem import Problem
from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.bounds import least_peak
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep
from tightfit.stages.combine.unrolled.frontier import Solution, fastest, nodes_of, worth
from tightfit.stages.combine.unrolled.starts import all_again, seconds_of
from tightfit.stages.combine.unrolled.tasks import (
    Tasks,
    forward_stages,
    full_stages,
    tasks_of_nodes,
)
from tightfit.stages.replay.line import FASTEST, executions
from tightfit.stages.replay.unrolling import ProgramStage

LARGEST = 120
"""Ops of the largest step that is planned."""
DECISIONS = 800
"""Further runs of the largest program in which any op may run again at any time."""
BUDGETS = 8
LIMITS = Limits(gap=1e-4, nodes=50, checks=500)


class CheckmateStrategy:
    """The integer program of the whole step, at budgets spread over those that it can keep."""

    about = STRATEGIES["checkmate"]

    def supports(self, step: TrainingStep) -> str:
        """A step of few ops."""
        count = len(step.problem.nodes)
        if count <= LARGEST:
            return ""
        return f"it has {count} ops, and an integer program of a whole step takes {LARGEST}"

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The captured order, and what the program finds for falling budgets."""
        problem = step.problem
        found = [(list(range(len(problem.nodes))), "captured order")]
        name, tasks, stages = _program(problem)
        for solution in _solutions(problem, tasks, stages, step.engine):
            said = f"{name}, within {solution.peak} bytes, {worth(solution)}"
            found.append((nodes_of(solution.chosen), said))
        return [
            Candidate(runs(problem, [problem.nodes[node].op for node in nodes]), [], said)
            for nodes, said in found
        ]


STRATEGY = CheckmateStrategy()


def _program(problem: Problem) -> tuple[str, Tasks, list[ProgramStage]]:
    tasks = tasks_of_nodes(problem)
    stages = full_stages(tasks)
    if sum(len(stage.candidates) for stage in stages) <= DECISIONS:
        return "any op again at any time", tasks, stages
    return "ops of the forward again after the loss", tasks, forward_stages(tasks)


def _solutions(
    problem: Problem, tasks: Tasks, stages: Sequence[ProgramStage], engine: Engine
) -> Iterator[Solution]:
    """Solutions of falling peaks, evenly spread, down to the first budget that has none. A program
    starts from making everything again, where that is within its budget."""
    highest = peak = _peak(problem, range(len(problem.nodes)))
    least = least_peak(problem)
    known = all_again(tasks, stages)
    limits = replace(LIMITS, engine=engine)
    start = Solution(known, _peak(problem, nodes_of(known)), None, seconds_of(known), 0.0)
    for number in range(1, BUDGETS + 1):
        budget = min(highest - (highest - least) * number // BUDGETS, peak - 1)
        if budget < least:
            return
        fits = start if start.peak <= budget else None
        solution = fastest(tasks, stages, budget, None, limits, fits)
        if solution is None:
            return
        peak = _peak(problem, nodes_of(solution.chosen))
        yield solution


def _peak(problem: Problem, sequence: Sequence[int]) -> int:
    return max(run.peak for run in executions(problem, sequence, in_place=True, ceiling=FASTEST))
