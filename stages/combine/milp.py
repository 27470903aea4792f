"""A mixed-integer program as it is written down, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tightfit.stages.combine.array_types import BoolArray, FloatArray, IndexArray
from tightfit.util.milp_solvers import (
    MilpColumns,
    MilpRows,
    create_highs_model,
    has_solution,
    is_infeasible,
    load_highs_program,
    loosen_bound,
    proven_bound,
    reached_time_limit,
    solve_with_cbc,
)
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

if TYPE_CHECKING:
    from highspy import Highs
    from pulp import LpConstraint, LpProblem, LpVariable


class LinearTerm(NamedTuple):
    """A variable, by its column, or a constant where the column is -1."""

    column: int = -1
    constant: float = 0.0


LinearExpression = list[tuple[float, LinearTerm]]
"""Weights with what they weigh."""
ZERO_TERM, ONE_TERM = LinearTerm(), LinearTerm(constant=1.0)


class MilpProgram(NamedTuple):
    """Minimize `cost` over columns between `low` and `high`, those of `integral` in whole numbers;
    each row, sparse by `start`, `column` and `value`, is at least its `least`. All are bounded.
    `possible` is False where a row of constants does not hold."""

    cost: FloatArray
    low: FloatArray
    high: FloatArray
    integral: BoolArray
    least: FloatArray
    start: IndexArray
    column: IndexArray
    value: FloatArray
    possible: bool


def append_rows(program: MilpProgram, rows: MilpBuilder) -> MilpProgram:
    """A program with further rows over its columns."""
    return program._replace(
        least=np.concatenate([program.least, np.array(rows.least, np.float64)]),
        start=np.concatenate(
            [program.start, program.start[-1] + np.array(rows.start[1:], np.int32)]
        ),
        column=np.concatenate([program.column, np.array(rows.column, np.int32)]),
        value=np.concatenate([program.value, np.array(rows.value, np.float64)]),
        possible=rows.possible,
    )


@dataclass
class MilpBuilder:
    """Columns and rows in the order in which they are added."""

    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    possible: bool = True

    def binary(self, cost: float = 0.0, at_least: float = 0.0) -> LinearTerm:
        """A new variable that is 0 or 1."""
        return self._column(cost, at_least, 1.0, True)

    def share(self, cost: float = 0.0, at_most: float = 1.0) -> LinearTerm:
        """A new variable from 0 to `at_most`, parts allowed."""
        return self._column(cost, 0.0, at_most, False)

    def _column(self, cost: float, low: float, high: float, integral: bool) -> LinearTerm:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.integral.append(integral)
        return LinearTerm(len(self.cost) - 1)

    def at_least(
        self, least: float, terms: Iterable[tuple[float, LinearTerm]], unit: float = 1.0
    ) -> None:
        """Adds the row: the weighted sum of terms is at least so much. A row is handed on in
        `unit`s; bytes are whole numbers until then, whose sums are exact."""
        weights: dict[int, float] = {}
        for weight, (column, constant) in terms:
            if column < 0:
                least -= weight * constant
            elif weight:
                weights[column] = weights.get(column, 0.0) + weight
        if weights and unit == 1.0:
            self._row(least, weights)
        elif weights:
            self._row(least / unit, {column: weight / unit for column, weight in weights.items()})
        else:
            self.possible = self.possible and least <= 0

    def _row(self, least: float, weights: dict[int, float]) -> None:
        sure, low, high = 0.0, self.low, self.high
        for column, weight in weights.items():
            sure += weight * (low[column] if weight > 0 else high[column])
        if least > sure:
            self.row_at_least(least, weights)

    def add_implication(self, claim: LinearTerm, grounds: Iterable[LinearTerm]) -> None:
        """Adds the row: the claim, which is at most 1, is at most the sum of the grounds."""
        found = [(1.0, ground) for ground in grounds]
        for _, ground in found:
            if ground is ONE_TERM:
                return
        self.at_least(0.0, [*found, (-1.0, claim)])

    def variable(self, low: float, high: float, integral: bool = False, cost: float = 0.0) -> int:
        """A new column between two numbers, by its number."""
        return self._column(cost, low, high, integral).column

    def row_at_least(self, low: float, weights: Mapping[int, float]) -> None:
        """Adds a row over columns that is at least `low`, whether or not it always is."""
        self.column += weights
        self.value += weights.values()
        self.start.append(len(self.column))
        self.least.append(low)

    def row_at_most(self, high: float, weights: Mapping[int, float]) -> None:
        """Adds a row over columns that is at most `high`, whether or not it always is."""
        self.row_at_least(-high, {column: -weight for column, weight in weights.items()})

    def without_rows(self) -> MilpBuilder:
        """The columns alone."""
        return replace(self, least=[], start=[0], column=[], value=[])

    def sparse(self) -> MilpProgram:
        """The program as arrays."""
        return MilpProgram(
            np.array(self.cost, np.float64),
            np.array(self.low, np.float64),
            np.array(self.high, np.float64),
            np.array(self.integral, np.bool_),
            np.array(self.least, np.float64),
            np.array(self.start, np.int32),
            np.array(self.column, np.int32),
            np.array(self.value, np.float64),
            self.possible,
        )


BOUND_MARGIN = 1e-6
"""What the bound of a tree search is lowered by, ten times the tolerance of its programs; costs are
in shares of the step."""
NO_SOLUTION = np.zeros(0)
MipStart = Sequence[tuple[int, float]]
"""Columns with their values."""


@dataclass(frozen=True)
class SolverLimits:
    """When a solve ends before the optimum is proven: at a `gap` in shares of the step, after
    `nodes` of the search tree, after `checks` questions of HiGHS whether to go on, after
    `iterations` of an LP, and, as the last guard, after `seconds`. HiGHS asks between rounds of its
    work; CBC does not, and counts no iterations. The `engine` is the one that solves."""

    gap: float = 2e-4
    nodes: int = 10
    checks: int = 50
    iterations: int = 200_000
    seconds: float = 120.0
    engine: SolverEngine = HIGHS_ENGINE


EXACT_LIMITS = SolverLimits(gap=1e-7, nodes=5_000, checks=2_000, iterations=2**31 - 1, seconds=20.0)
"""Those of small programs that are solved to their optimum: what counts are nodes and checks, and
the gap is below the tolerance of the engines."""


@dataclass(frozen=True)
class MilpSolution:
    """`bound` is at most the value of every solution: inf where none exists, -inf where nothing is
    known. `values` are those of the columns, empty where no solution was found, `dual_values` those
    of the rows of a program without whole numbers. `iterations` counts the work; `clock` says that
    the clock ended it."""

    bound: float
    values: FloatArray
    iterations: int
    clock: bool
    dual_values: FloatArray = field(default_factory=lambda: NO_SOLUTION)


HIGHS_HEURISTICS = ("mip_allow_restart", "mip_heuristic_run_rins", "mip_heuristic_run_rens")


def solve_program_with_highs(
    program: MilpProgram, limits: SolverLimits, whole: bool, start: MipStart | None
) -> MilpSolution:
    """Runs a program, with whole numbers where `whole` says so. With a start, which may be empty,
    solutions are searched for, too."""
    model = _run_highs(program, limits, whole, start)
    solution, info = model.getSolution(), model.getInfo()
    found = not whole or has_solution(model)
    return MilpSolution(
        bound=_usable_bound(is_infeasible(model), proven_bound(model) if whole else -math.inf),
        values=np.array(solution.col_value) if found else NO_SOLUTION,
        iterations=max(info.simplex_iteration_count, 0),
        clock=reached_time_limit(model),
        dual_values=NO_SOLUTION if whole else np.array(solution.row_dual, np.float64),
    )


def _usable_bound(infeasible: bool, bound: float) -> float:
    """The bound of a run, which holds for an engine with tolerances."""
    return math.inf if infeasible else loosen_bound(bound, BOUND_MARGIN)


def _run_highs(
    program: MilpProgram, limits: SolverLimits, whole: bool, start: MipStart | None
) -> Highs:
    model = create_highs_model(
        {
            "time_limit": limits.seconds,
            "simplex_iteration_limit": limits.iterations,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": limits.gap,
            "mip_max_nodes": limits.nodes,
            # Searches for better solutions take most of the time and add nothing to the bound.
            **dict.fromkeys(HIGHS_HEURISTICS, start is not None),
        }
    )
    unlimited = np.full(len(program.least), np.inf)
    whole_numbers = program.integral if whole else None
    columns = MilpColumns(program.cost, program.low, program.high, whole_numbers)
    rows = MilpRows(program.least, unlimited, program.start, program.column, program.value)
    load_highs_program(model, columns, rows, limits.checks)
    if start:
        places, values = zip(*start, strict=True)
        model.setSolution(len(start), np.array(places, np.int32), np.array(values, np.float64))
    model.run()
    return model


_PulpModel: TypeAlias = "tuple[LpProblem, list[LpVariable], list[LpConstraint]]"
COST_SCALE = 1e4
"""What costs are multiplied by: CBC prints its bounds with three decimals, and costs are shares of
the step."""
MIN_CBC_GAP = 1e-7


def solve_program_with_cbc(
    program: MilpProgram, limits: SolverLimits, whole: bool, start: MipStart | None
) -> MilpSolution:
    """Runs a program, with whole numbers where `whole` says so, from a start where there is one."""
    model, columns, rows = _build_pulp_model(program, whole)
    for column, value in start or ():
        columns[column].varValue = value
    gap = COST_SCALE * max(limits.gap, MIN_CBC_GAP)
    run = solve_with_cbc(model, gap, limits.nodes, limits.seconds, warm=bool(start))
    values = NO_SOLUTION
    if run.found:
        # PuLP leaves out columns that are in no row and cost nothing.
        pairs = zip(columns, program.low, strict=True)
        values = np.array([low if c.varValue is None else c.varValue for c, low in pairs])
    prices = NO_SOLUTION
    if run.found and not whole:
        prices = np.array([row.pi for row in rows], np.float64) / COST_SCALE
    objective = float(program.cost @ values) if run.found else math.inf
    sure = objective - gap / COST_SCALE if run.optimal else -math.inf
    bound = min(max(sure, run.bound / COST_SCALE), objective)
    return MilpSolution(
        bound=_usable_bound(run.infeasible, bound if whole else -math.inf),
        values=values,
        iterations=run.iterations,
        clock=run.limit == "clock",
        dual_values=prices,
    )


def _build_pulp_model(program: MilpProgram, whole: bool) -> _PulpModel:
    import pulp

    model = pulp.LpProblem("program", pulp.LpMinimize)
    kinds = [pulp.LpInteger if whole and mark else pulp.LpContinuous for mark in program.integral]
    columns = [
        model.add_variable(f"c{number}", low, high, kind)
        for number, (low, high, kind) in enumerate(
            zip(program.low.tolist(), program.high.tolist(), kinds, strict=True)
        )
    ]
    costs = (program.cost * COST_SCALE).tolist()
    model += pulp.LpAffineExpression(zip(columns, costs, strict=True))
    column, value, starts = program.column.tolist(), program.value.tolist(), program.start.tolist()
    rows = []
    for number, least in enumerate(program.least.tolist()):
        places = range(starts[number], starts[number + 1])
        terms = [(columns[column[place]], value[place]) for place in places]
        sum_of_terms = pulp.LpAffineExpression(terms)
        rows.append(pulp.LpConstraint(sum_of_terms, pulp.LpConstraintGE, f"r{number}", least))
        model += rows[-1]
    return model, columns, rows


DUAL_BOUND_ROUNDING = 1e-9
"""What a bound by weak duality is lowered by, for the rounding of its sums."""
SOLVER_BACKENDS: dict[
    SolverEngine, Callable[[MilpProgram, SolverLimits, bool, MipStart | None], MilpSolution]
] = {
    "highs": solve_program_with_highs,
    "cbc": solve_program_with_cbc,
}
"""What runs a program, with whole numbers where that is asked for."""


def solve_relaxation(program: MilpProgram, limits: SolverLimits) -> MilpSolution:
    """The program with parts of everything allowed; its bound holds however exact the engine is,
    since it is computed from prices of the rows."""
    if not program.possible:
        return _infeasible_solution()
    found = SOLVER_BACKENDS[limits.engine](program, limits, False, None)
    if found.bound == math.inf:
        return _infeasible_solution(found.iterations)
    price = np.maximum(found.dual_values, 0.0)
    known = len(price) == len(program.least)
    return replace(found, bound=dual_bound(program, price) if known else -math.inf)


def _infeasible_solution(iterations: int = 0) -> MilpSolution:
    return MilpSolution(math.inf, NO_SOLUTION, iterations, False)


def dual_bound(program: MilpProgram, price: FloatArray) -> float:
    """What no solution is below, by any prices of rows that are not negative: weak duality."""
    rows = np.repeat(np.arange(len(program.least)), np.diff(program.start))
    reduced = program.cost - np.bincount(
        program.column, weights=price[rows] * program.value, minlength=len(program.cost)
    )
    columns = np.where(reduced > 0, program.low, program.high) * reduced
    return math.fsum(price * program.least) + math.fsum(columns) - DUAL_BOUND_ROUNDING


def solve_milp(
    program: MilpProgram, limits: SolverLimits, start: MipStart | None = None
) -> MilpSolution:
    """The program as it is; its bound is what the search has proven, not the solution's value. With
    a start, columns and their values, which may be none, solutions are searched for, too."""
    if not program.possible:
        return _infeasible_solution()
    found = SOLVER_BACKENDS[limits.engine](program, limits, True, start)
    return _infeasible_solution(found.iterations) if found.bound == math.inf else found
