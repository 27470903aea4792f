"""Solves programs with HiGHS: one thread, limits by counted work, bounds that hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from schemas.highs import (
    ProgramColumns,
    ProgramRows,
    ended_by_clock,
    has_solution,
    is_infeasible,
    loosened,
    pass_program,
    proven,
    silent_model,
)
from stages.combine.moment.matrix import Floats, SparseProgram

if TYPE_CHECKING:
    from highspy import Highs

MARGIN = 1e-6
"""What the bound of a tree search is lowered by, ten times the tolerance of its programs; costs are
in shares of the step."""
ROUNDING = 1e-9
"""What a bound by weak duality is lowered by, for the rounding of its sums."""
NOTHING = np.zeros(0)
SEARCHES = ("mip_allow_restart", "mip_heuristic_run_rins", "mip_heuristic_run_rens")
Start = Sequence[tuple[int, float]]
"""Columns with their values."""


@dataclass(frozen=True)
class Limits:
    """When a solve ends before the optimum is proven: at a `gap` in shares of the step, after
    `nodes` of the search tree, after `checks` questions of HiGHS whether to go on, after
    `iterations` of an LP, and, as the last guard, after `seconds`. HiGHS asks between rounds of its
    work."""

    gap: float = 2e-4
    nodes: int = 10
    checks: int = 50
    iterations: int = 200_000
    seconds: float = 120.0


@dataclass(frozen=True)
class Solved:
    """`bound` is at most the value of every solution: inf where there is none, -inf where nothing
    is known. `values` are those of the columns, empty where no solution was found. `iterations`
    counts the work; `clock` says that the clock ended it."""

    bound: float
    values: Floats
    iterations: int
    clock: bool


def relaxed(program: SparseProgram, limits: Limits) -> Solved:
    """The program with parts of everything allowed; its bound holds however exact the solver is,
    since it is computed from prices of the rows."""
    if not program.possible:
        return Solved(math.inf, NOTHING, 0, False)
    model = _solved(program, limits, whole=False)
    solution, iterations = model.getSolution(), model.getInfo().simplex_iteration_count
    if is_infeasible(model):
        return Solved(math.inf, NOTHING, iterations, False)
    price = np.maximum(np.array(solution.row_dual, np.float64), 0.0)
    bound = dual_bound(program, price) if len(price) == len(program.least) else -math.inf
    return Solved(bound, np.array(solution.col_value), iterations, ended_by_clock(model))


def dual_bound(program: SparseProgram, price: Floats) -> float:
    """What no solution is below, by any prices of rows that are not negative: weak duality."""
    rows = np.repeat(np.arange(len(program.least)), np.diff(program.start))
    reduced = program.cost - np.bincount(
        program.column, weights=price[rows] * program.value, minlength=len(program.cost)
    )
    columns = np.where(reduced > 0, program.low, program.high) * reduced
    return math.fsum(price * program.least) + math.fsum(columns) - ROUNDING


def integral(program: SparseProgram, limits: Limits, start: Start | None = None) -> Solved:
    """The program as it is; its bound is what the search has proven, not the solution's value. With
    a start, columns and their values, which may be none, solutions are searched for, too."""
    if not program.possible:
        return Solved(math.inf, NOTHING, 0, False)
    model = _solved(program, limits, whole=True, start=start)
    iterations = max(model.getInfo().simplex_iteration_count, 0)
    if is_infeasible(model):
        return Solved(math.inf, NOTHING, iterations, False)
    values = np.array(model.getSolution().col_value) if has_solution(model) else NOTHING
    bound = loosened(proven(model), MARGIN)
    return Solved(bound, values, iterations, ended_by_clock(model))


def _solved(
    program: SparseProgram, limits: Limits, whole: bool, start: Start | None = None
) -> Highs:
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
