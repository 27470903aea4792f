"""The fastest runs of tasks for falling peaks, each with what is proven of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.moment.solver import integral
from tightfit.stages.combine.unrolled.program import Chosen, Unrolled
from tightfit.stages.combine.unrolled.tasks import Tasks
from tightfit.stages.replay.unrolling import ProgramStage

EXACT = 2e-6
"""Seconds, in shares of a run's, by which one that is proven optimal may be above the bound."""


@dataclass(frozen=True)
class Solution:
    """Runs within `peak` bytes (as the program counts them) and `save` that take `seconds`; no runs
    of the same stages within them take less than `bound`."""

    chosen: list[Chosen]
    peak: int
    save: int | None
    seconds: float
    bound: float

    @property
    def gap(self) -> float:
        """The share of its seconds that other runs could save."""
        return max(1.0 - self.bound / self.seconds, 0.0) if self.seconds > 0 else 0.0

    @property
    def optimal(self) -> bool:
        """Whether none of the stages' runs are faster."""
        return self.gap <= EXACT


def fastest(
    tasks: Tasks,
    stages: Sequence[ProgramStage],
    peak: int,
    save: int | None,
    limits: Limits,
    known: Solution | None = None,
) -> Solution | None:
    """The fastest runs within limits that the work suffices for; those `known` to keep them where
    none are faster. None where there are none, or none were found."""
    program = Unrolled(tasks, stages, peak, save)
    arrays = program.sparse()
    if arrays.possible and not len(arrays.cost):
        return Solution(program.solution(arrays.cost), peak, save, program.sure, program.sure)
    start = [] if known is None else program.start(known.chosen)
    solved = integral(arrays, limits, start)
    bound = program.seconds(solved.bound)
    found = known
    if len(solved.values):
        seconds = program.seconds(float(arrays.cost @ solved.values.round()))
        if known is None or seconds < known.seconds:
            found = Solution(program.solution(solved.values), peak, save, seconds, bound)
    if found is None:
        return None
    return Solution(found.chosen, peak, save, found.seconds, min(bound, found.seconds))


def nodes_of(chosen: Sequence[Chosen]) -> list[int]:
    """The positions of the nodes that runs execute, in order."""
    return [node for _, _, way in chosen for node in way.runs]


def worth(solution: Solution) -> str:
    """What is proven of a solution, as a clause."""
    if solution.optimal:
        return "the fastest of its kind"
    return f"{solution.gap:.1%} above a bound"
