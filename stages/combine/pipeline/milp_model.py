"""Integer programs of the allocators, written row by row and solved by an engine: one thread,
limits by counted work, bounds that hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tightfit.stages.combine.milp import SOLVER_BACKENDS, MilpProgram, SolverLimits
from tightfit.util.milp_solvers import loosen_bound
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

BOUND_MARGIN = 1e-6
"""What a bound is loosened by: the tolerance of the engines."""
MAX_ITERATIONS = 2**31 - 1
"""More iterations than a program takes: what counts are nodes and questions."""


@dataclass(frozen=True)
class IntegerLimits:
    """When a solve ends before the optimum is proven: after `nodes` of the search tree, when HiGHS
    has asked `checks` times whether to go on, and, as the last guard, after `seconds`. The `engine`
    is the one that solves."""

    nodes: int = 5_000
    checks: int = 2_000
    seconds: float = 20.0
    engine: SolverEngine = HIGHS_ENGINE


@dataclass(frozen=True)
class IntegerSolution:
    """`values` of the columns, empty without a solution; no solution has a cost of less than
    `bound`, which is inf where none exists. `clock` says that the clock ended it."""

    values: Sequence[float]
    bound: float
    clock: bool


@dataclass
class IntegerProgram:
    """Minimizes costs over columns within bounds, whole numbers where `integral`; each row is at
    least its number."""

    costs: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    rows: list[tuple[float, Mapping[int, float]]] = field(default_factory=list)

    def column(self, low: float, high: float, integral: bool = False, cost: float = 0.0) -> int:
        """A new column, by its number."""
        self.costs.append(cost)
        self.lows.append(low)
        self.highs.append(high)
        self.integral.append(integral)
        return len(self.costs) - 1

    def at_least(self, low: float, weights: Mapping[int, float]) -> None:
        """Adds a row that is at least `low`."""
        self.rows.append((low, weights))

    def at_most(self, high: float, weights: Mapping[int, float]) -> None:
        """Adds a row that is at most `high`."""
        self.rows.append((-high, {column: -weight for column, weight in weights.items()}))

    def solve(self, limits: IntegerLimits, start: Sequence[float] = ()) -> IntegerSolution:
        """Solves it, from the solution `start` where one is given."""
        own = SolverLimits(
            gap=BOUND_MARGIN / 10,
            nodes=limits.nodes,
            checks=limits.checks,
            iterations=MAX_ITERATIONS,
            seconds=limits.seconds,
            engine=limits.engine,
        )
        ended = SOLVER_BACKENDS[own.engine](self._sparse(), own, True, list(enumerate(start)))
        if ended.infeasible:
            return IntegerSolution((), math.inf, False)
        return IntegerSolution(
            ended.values.tolist(), loosen_bound(ended.bound, BOUND_MARGIN), ended.clock
        )

    def _sparse(self) -> MilpProgram:
        """The program as arrays, in which each row is at least something."""
        sizes = [len(weights) for _, weights in self.rows]
        weighted = [pair for _, weights in self.rows for pair in weights.items()]
        return MilpProgram(
            cost=np.array(self.costs),
            low=np.array(self.lows),
            high=np.array(self.highs),
            integral=np.array(self.integral, np.bool_),
            least=np.array([least for least, _ in self.rows]),
            start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
            column=np.array([column for column, _ in weighted], np.int32),
            value=np.array([value for _, value in weighted], np.float64),
            possible=True,
        )
