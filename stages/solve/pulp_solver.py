"""Solves an ILP with HiGHS or CBC through PuLP, and says truthfully how far it got.

PuLP alone does not tell an optimum from the best solution found before a limit, has no bound from
CBC, and does not know the status HiGHS gives at its limit on nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pulp

from tightfit.util.milp_solvers import (
    InterruptCounter,
    has_solution,
    is_infeasible,
    proven_bound,
    reached_time_limit,
    solve_with_cbc,
)
from tightfit.util.solver_engines import SolverEngine

SolveOutcome = Literal["solved", "infeasible", "unknown"]
TOLERANCE = 1e-6


@dataclass(frozen=True)
class PulpLimits:
    """When a solve ends before the optimum is proven: at an absolute `gap` of the objective, at
    `nodes` of the search tree, after `checks` questions of HiGHS whether to go on, and, as the last
    guard, after `seconds`. HiGHS asks between rounds of its work, within a node too."""

    gap: float = 0.0
    nodes: int = 100_000
    checks: int = 1_000_000
    seconds: float = 600.0


@dataclass(frozen=True)
class PulpSolveResult:
    """What a solve found. "solved": the variables hold a solution of value `objective`, and no
    solution is below `bound`. "infeasible" is proven; "unknown" means that a limit came first.
    `limit` is "", "gap", "work" or "clock", as in `schemas.block_options`."""

    outcome: SolveOutcome
    objective: float
    bound: float
    limit: str


def solve(
    program: pulp.LpProblem, engine: SolverEngine, limits: PulpLimits, warm: bool = False
) -> PulpSolveResult:
    """Minimizes a program; `warm` starts from the initial values of its variables."""
    return _SOLVERS[engine](program, limits, warm)


def _solved_result(objective: float, bound: float, limit: str) -> PulpSolveResult:
    bound = min(bound, objective)
    met = objective - bound <= TOLERANCE * max(1.0, abs(objective))
    return PulpSolveResult("solved", objective, objective if met else bound, "" if met else limit)


def _solve_highs(program: pulp.LpProblem, limits: PulpLimits, warm: bool) -> PulpSolveResult:
    import highspy

    class _Highs(pulp.HiGHS):
        """PuLP's HiGHS with a start, and without the reading of the result, which is done below."""

        def callSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802
            given = [(v.index, v.varValue) for v in lp.variables() if v.varValue is not None]
            if warm and given:
                columns, values = zip(*given, strict=True)
                lp.solverModel.setSolution(len(columns), list(columns), list(values))
            lp.solverModel.cbMipInterrupt.subscribe(InterruptCounter(limits.checks))
            lp.solverModel.run()

        def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:  # noqa: N802
            return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound

    solver = _Highs(
        msg=False,
        threads=1,
        timeLimit=limits.seconds,
        gapRel=0.0,
        gapAbs=max(limits.gap, TOLERANCE / 10),
        mip_max_nodes=limits.nodes,
        random_seed=0,
    )
    program.solve(solver)
    model = program.solverModel
    info = model.getInfo()
    if is_infeasible(model):
        return PulpSolveResult("infeasible", math.inf, math.inf, "")
    done = model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    limit = "clock" if reached_time_limit(model) else "gap" if done else "work"
    if not has_solution(model):
        return PulpSolveResult("unknown", math.inf, info.mip_dual_bound, limit)
    values = list(model.getSolution().col_value)
    for variable in program.variables():
        variable.varValue = values[variable.index]
    return _solved_result(info.objective_function_value, proven_bound(model), limit)


def _solve_cbc(program: pulp.LpProblem, limits: PulpLimits, warm: bool) -> PulpSolveResult:
    gap = max(limits.gap, TOLERANCE / 10)
    run = solve_with_cbc(program, gap, limits.nodes, limits.seconds, warm)
    if run.infeasible:
        return PulpSolveResult("infeasible", math.inf, math.inf, "")
    if not run.found:
        bound = run.bound if math.isfinite(run.bound) else 0.0
        return PulpSolveResult("unknown", math.inf, bound, run.limit)
    objective = pulp.value(program.objective) or 0.0
    bound = max(objective - gap, run.bound) if run.optimal else run.bound
    return _solved_result(objective, bound, run.limit)


_SOLVERS: dict[SolverEngine, Callable[[pulp.LpProblem, PulpLimits, bool], PulpSolveResult]] = {
    "highs": _solve_highs,
    "cbc": _solve_cbc,
}
