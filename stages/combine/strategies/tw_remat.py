"""TW-Remat: schedules by a tree decomposition of the step (Kumar et al. 2019; Z 3.2.2)."""

from __future__ import annotations

from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.stages.combine.tree_decomposition import (
    build_recursive_schedule,
    build_tree_decomposition,
)
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.util.strategies import STRATEGIES

PEAKS = 12
MAX_OPS = 5000
"""Ops of the largest step that is decomposed."""


class TreewidthRematStrategy:
    """The recursive schedule, for peaks spread from the most to the least that a plan may have."""

    about = STRATEGIES["tw_remat"]

    def supports(self, step: PlanningProblem) -> str:
        """A step of no more ops than a decomposition takes seconds for."""
        count = len(step.problem.nodes)
        return "" if count <= MAX_OPS else f"it has {count} ops, and {MAX_OPS} are decomposed"

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The captured order, and a schedule a peak where that does not run too much again."""
        problem = step.problem
        decomposition = build_tree_decomposition(problem)
        everything = range(len(problem.nodes))
        highest = max(run.peak for run in simulate_executions(problem, everything, in_place=False))
        least = peak_lower_bound(problem)
        found: dict[tuple[int, ...], str] = {tuple(everything): "captured order"}
        for number in range(1, PEAKS + 1):
            limit = highest - (highest - least) * number // PEAKS
            sequence = build_recursive_schedule(problem, decomposition, limit)
            if sequence is not None:
                found.setdefault(tuple(sequence), f"parts within {limit} bytes")
        return [
            Candidate(
                run_actions(problem, [problem.nodes[node].op for node in sequence]), [], origin
            )
            for sequence, origin in found.items()
        ]


STRATEGY = TreewidthRematStrategy()
