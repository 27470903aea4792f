"""Integer programs of the allocators, written row by row and solved by HiGHS: one thread, limits by
counted work, bounds that hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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

MARGIN = 1e-6
"""What a bound is loosened by: the tolerance of HiGHS."""


@dataclass(frozen=True)
class IntegerLimits:
    """When a solve ends before the optimum is proven: after `nodes` of the search tree, when HiGHS
    has asked `checks` times whether to go on, and, as the last guard, after `seconds`."""

    nodes: int = 5_000
    checks: int = 2_000
    seconds: float = 20.0


@dataclass(frozen=True)
class IntegerSolution:
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

    def solve(self, limits: IntegerLimits, start: Sequence[float] = ()) -> IntegerSolution:
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
        columns = ProgramColumns(
            np.array(self.costs), np.array(self.lows), np.array(self.highs), self.integral
        )
        pass_program(model, columns, self._rows(), limits.checks)
        if len(start):
            solution = highspy.HighsSolution()
            solution.col_value = list(start)
            model.setSolution(solution)
        model.run()
        if is_infeasible(model):
            return IntegerSolution((), math.inf, False)
        values = list(model.getSolution().col_value) if has_solution(model) else ()
        return IntegerSolution(values, loosened(proven(model), MARGIN), ended_by_clock(model))

    def _rows(self) -> ProgramRows:
        sizes = [len(weights) for _, weights, _ in self.rows]
        weighted = [pair for _, weights, _ in self.rows for pair in weights.items()]
        return ProgramRows(
            np.array([low for low, _, _ in self.rows]),
            np.array([high for _, _, high in self.rows]),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
            np.array([column for column, _ in weighted], np.int32),
            np.array([value for _, value in weighted], np.float64),
        )
