"""Integer programs of the allocators, written row by row and solved by HiGHS: one thread, limits by
counted work, bounds that hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.highs import (
    Checks,
    ended_by_clock,
    has_solution,
    is_infeasible,
    loosened,
    proven,
    silent_model,
)

MARGIN = 1e-6
"""What a bound is loosened by: the tolerance of HiGHS."""


@dataclass(frozen=True)
class Limits:
    """When a solve ends before the optimum is proven: after `nodes` of the search tree, when HiGHS
    has asked `checks` times whether to go on, and, as the last guard, after `seconds`."""

    nodes: int = 5_000
    checks: int = 2_000
    seconds: float = 20.0


@dataclass(frozen=True)
class Found:
    """`values` of the columns, empty without a solution; no solution has a cost of less than
    `bound`, which is inf where none exists. `clock` says that the clock ended it."""

    values: Sequence[float]
    bound: float
    clock: bool


@dataclass
class IntegerProgram:
    """Minimises costs over columns within bounds, whole numbers where `integral`; each row is from
    `low` to `high`."""

    costs: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    rows: list[tuple[float, Mapping[int, float], float]] = field(default_factory=list)

    def column(self, low: float, high: float, integral: bool = False, cost: float = 0.0) -> int:
        """A new column, by its number."""
        self.costs.append(cost)
        self.lows.append(low)
        self.highs.append(high)
        self.integral.append(integral)
        return len(self.costs) - 1

    def at_least(self, low: float, weights: Mapping[int, float]) -> None:
        """Adds a row that is at least `low`."""
        self.rows.append((low, weights, math.inf))

    def at_most(self, high: float, weights: Mapping[int, float]) -> None:
        """Adds a row that is at most `high`."""
        self.rows.append((-math.inf, weights, high))

    def solve(self, limits: Limits, start: Sequence[float] = ()) -> Found:
        """Solves it, from the solution `start` where one is given."""
        import highspy

        model = silent_model(
            {
                "time_limit": limits.seconds,
                "mip_rel_gap": 0.0,
                "mip_abs_gap": MARGIN / 10,
                "mip_max_nodes": limits.nodes,
            }
        )
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.costs), len(self.rows)
        lp.col_cost_ = np.array(self.costs)
        lp.col_lower_, lp.col_upper_ = np.array(self.lows), np.array(self.highs)
        lp.row_lower_ = np.array([low for low, _, _ in self.rows])
        lp.row_upper_ = np.array([high for _, _, high in self.rows])
        sizes = [len(weights) for _, weights, _ in self.rows]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        lp.a_matrix_.index_ = np.array(
            [column for _, weights, _ in self.rows for column in weights], np.int32
        )
        lp.a_matrix_.value_ = np.array(
            [value for _, weights, _ in self.rows for value in weights.values()], np.float64
        )
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(mark)] for mark in self.integral]
        model.cbMipInterrupt.subscribe(Checks(limits.checks))
        model.passModel(lp)
        if len(start):
            solution = highspy.HighsSolution()
            solution.col_value = list(start)
            model.setSolution(solution)
        model.run()
        if is_infeasible(model):
            return Found((), math.inf, False)
        values = list(model.getSolution().col_value) if has_solution(model) else ()
        return Found(values, loosened(proven(model), MARGIN), ended_by_clock(model))
