"""What the rooms that solve with HiGHS ask of it: an end by counted work, and what is proven."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from highspy import Highs, HighsCallbackEvent
    from numpy.typing import NDArray


class ProgramColumns(NamedTuple):
    """Columns of a program: each has a `cost` and is from `low` to `high`, a whole number where
    `integral` says so; that is None where none has to be."""

    cost: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    integral: Sequence[bool] | NDArray[np.bool_] | None


class ProgramRows(NamedTuple):
    """Rows of a program, each from `low` to `high`: that at r weights the columns
    `column[start[r]:start[r + 1]]` by `value`."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    start: NDArray[np.int32]
    column: NDArray[np.int32]
    value: NDArray[np.float64]


def silent_model(options: Mapping[str, Any]) -> Highs:
    """A model that prints nothing, runs in one thread and does the same each time, with `options`
    beside these."""
    import highspy

    model = highspy.Highs()
    same = {"output_flag": False, "threads": 1, "random_seed": 0}
    for name, value in {**same, **options}.items():
        model.setOptionValue(name, value)
    return model


def pass_program(model: Highs, columns: ProgramColumns, rows: ProgramRows, checks: int) -> None:
    """Gives a model its program; one with whole numbers is stopped after so many `checks`."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns.cost), len(rows.low)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = columns.cost, columns.low, columns.high
    lp.row_lower_, lp.row_upper_ = rows.low, rows.high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = rows.start
    lp.a_matrix_.index_ = rows.column
    lp.a_matrix_.value_ = rows.value
    if columns.integral is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(mark)] for mark in columns.integral]
        model.cbMipInterrupt.subscribe(Checks(checks))
    model.passModel(lp)


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
