"""TW-Remat: schedules by a tree decomposition of the step (Kumar et al. 2019; Z 3.2.2)."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.bounds import least_peak
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep
from tightfit.stages.combine.treewidth.decomposition import decomposed
from tightfit.stages.combine.treewidth.schedule import scheduled
from tightfit.stages.replay.line import executions

PEAKS = 12
LARGEST = 5000
"""Ops of the largest step that is decomposed."""


class TreewidthRemat:
    """The recursive schedule, for peaks spread from the most to the least that a plan may have."""

    about = STRATEGIES["tw_remat"]

    def supports(self, step: TrainingStep) -> str:
        """A step of no more ops than a decomposition takes seconds for."""
        count = len(step.problem.nodes)
        return "" if count <= LARGEST else f"it has {count} ops, and {LARGEST} are decomposed"

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The captured order, and a schedule a peak where that does not run too much again."""
        problem = step.problem
        decomposition = decomposed(problem)
        everything = range(len(problem.nodes))
        highest = max(run.peak for run in executions(problem, everything, in_place=False))
        least = least_peak(problem)
        found: dict[tuple[int, ...], str] = {tuple(everything): "captured order"}
        for number in range(1, PEAKS + 1):
            limit = highest - (highest - least) * number // PEAKS
            sequence = scheduled(problem, decomposition, limit)
            if sequence is not None:
                found.setdefault(tuple(sequence), f"parts within {limit} bytes")
        return [
            Candidate(runs(problem, [problem.nodes[node].op for node in sequence]), [], origin)
            for sequence, origin in found.items()
        ]


STRATEGY = TreewidthRemat()
