"""Runs a program by HiGHS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tightfit.schemas.highs import (
    ProgramColumns,
    ProgramRows,
    ended_by_clock,
    has_solution,
    is_infeasible,
    pass_program,
    proven,
    silent_model,
)
from tightfit.stages.combine.moment.limits import NOTHING_FOUND, Ended, Limits, Start
from tightfit.stages.combine.moment.matrix import SparseProgram

if TYPE_CHECKING:
    from highspy import Highs

SEARCHES = ("mip_allow_restart", "mip_heuristic_run_rins", "mip_heuristic_run_rens")


def by_highs(program: SparseProgram, limits: Limits, whole: bool, start: Start | None) -> Ended:
    """Runs a program, with whole numbers where `whole` says so. With a start, which may be empty,
    solutions are searched for, too."""
    model = _run(program, limits, whole, start)
    solution, info = model.getSolution(), model.getInfo()
    found = not whole or has_solution(model)
    return Ended(
        infeasible=is_infeasible(model),
        values=np.array(solution.col_value) if found else NOTHING_FOUND,
        prices=NOTHING_FOUND if whole else np.array(solution.row_dual, np.float64),
        bound=proven(model),
        iterations=max(info.simplex_iteration_count, 0),
        clock=ended_by_clock(model),
    )


def _run(program: SparseProgram, limits: Limits, whole: bool, start: Start | None) -> Highs:
    model = silent_model(
        {
            "time_limit": limits.seconds,
            "simplex_iteration_limit": limits.iterations,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": limits.gap,
            "mip_max_nodes": limits.nodes,
            # Searches for better solutions take most of the time and add nothing to the bound.
            **dict.fromkeys(SEARCHES, start is not None),
        }
    )
    unlimited = np.full(len(program.least), np.inf)
    whole_numbers = program.integral if whole else None
    columns = ProgramColumns(program.cost, program.low, program.high, whole_numbers)
    rows = ProgramRows(program.least, unlimited, program.start, program.column, program.value)
    pass_program(model, columns, rows, limits.checks)
    if start:
        places, values = zip(*start, strict=True)
        model.setSolution(len(start), np.array(places, np.int32), np.array(values, np.float64))
    model.run()
    return model
