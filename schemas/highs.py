"""What the rooms that solve with HiGHS ask of it: an end by counted work, and what is proven."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from highspy import Highs, HighsCallbackEvent


def silent_model(options: Mapping[str, Any]) -> Highs:
    """A model that prints nothing, runs in one thread and does the same each time, with `options`
    beside these."""
    import highspy

    model = highspy.Highs()
    same = {"output_flag": False, "threads": 1, "random_seed": 0}
    for name, value in {**same, **options}.items():
        model.setOptionValue(name, value)
    return model


class Checks:
    """Tells HiGHS to stop after so many calls."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, event: HighsCallbackEvent) -> None:
        """Count a call of HiGHS; the last one interrupts it."""
        self.left -= 1
        if self.left <= 0 and event.data_in is not None:
            event.data_in.user_interrupt = True


def is_infeasible(model: Highs) -> bool:
    """True where a program that was run has no solution."""
    import highspy

    return model.getModelStatus() in (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
    )


def ended_by_clock(model: Highs) -> bool:
    """True where the clock ended the run."""
    import highspy

    return bool(model.getModelStatus() == highspy.HighsModelStatus.kTimeLimit)


def has_solution(model: Highs) -> bool:
    """True where a solution was found."""
    import highspy

    found: int = model.getInfo().primal_solution_status
    return bool(found == highspy.kSolutionStatusFeasible)


def proven(model: Highs) -> float:
    """What no solution of an integer program is below. Where nothing is left for the tree, no bound
    of it is given: the solution is the optimum."""
    info = model.getInfo()
    known: float = (
        info.mip_dual_bound if info.mip_node_count >= 0 else info.objective_function_value
    )
    return known


def loosened(bound: float, margin: float) -> float:
    """A bound that holds for a solver with tolerances: less by a margin, -inf where none is
    known."""
    return bound - margin if math.isfinite(bound) else -math.inf
