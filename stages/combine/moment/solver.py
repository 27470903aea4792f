"""Solves programs by an engine: one thread, limits by counted work, bounds that hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tightfit.schemas.engines import Engine
from tightfit.schemas.highs import loosened
from tightfit.stages.combine.moment.by_cbc import by_cbc
from tightfit.stages.combine.moment.by_highs import by_highs
from tightfit.stages.combine.moment.limits import NOTHING_FOUND, Ended, Limits, Start
from tightfit.stages.combine.moment.matrix import Floats, SparseProgram

MARGIN = 1e-6
"""What the bound of a tree search is lowered by, ten times the tolerance of its programs; costs are
in shares of the step."""
ROUNDING = 1e-9
"""What a bound by weak duality is lowered by, for the rounding of its sums."""
ENGINES: dict[Engine, Callable[[SparseProgram, Limits, bool, Start | None], Ended]] = {
    "highs": by_highs,
    "cbc": by_cbc,
}
"""What runs a program, with whole numbers where that is asked for."""


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
    """The program with parts of everything allowed; its bound holds however exact the engine is,
    since it is computed from prices of the rows."""
    if not program.possible:
        return Solved(math.inf, NOTHING_FOUND, 0, False)
    ended = ENGINES[limits.engine](program, limits, False, None)
    if ended.infeasible:
        return Solved(math.inf, NOTHING_FOUND, ended.iterations, False)
    price = np.maximum(ended.prices, 0.0)
    bound = dual_bound(program, price) if len(price) == len(program.least) else -math.inf
    return Solved(bound, ended.values, ended.iterations, ended.clock)


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
        return Solved(math.inf, NOTHING_FOUND, 0, False)
    ended = ENGINES[limits.engine](program, limits, True, start)
    if ended.infeasible:
        return Solved(math.inf, NOTHING_FOUND, ended.iterations, False)
    bound = loosened(ended.bound, MARGIN)
    return Solved(bound, ended.values, ended.iterations, ended.clock)
