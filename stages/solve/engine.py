"""Solves an ILP with HiGHS or CBC through PuLP, and says truthfully how far it got.

PuLP alone does not tell an optimum from the best solution found before a limit, has no bound from
CBC, and does not know the status HiGHS gives at its limit on nodes.
"""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pulp

from schemas.engines import Engine
from schemas.highs import Checks, ended_by_clock, has_solution, is_infeasible, proven

Outcome = Literal["solved", "infeasible", "unknown"]
TOLERANCE = 1e-6
_PRINTED = 5e-4
"""CBC prints its bounds with three decimals."""


@dataclass(frozen=True)
class Limits:
    """When a solve ends before the optimum is proven: at an absolute `gap` of the objective, at
    `nodes` of the search tree, after `checks` questions of HiGHS whether to go on, and, as the last
    guard, after `seconds`. HiGHS asks between rounds of its work, within a node too."""

    gap: float = 0.0
    nodes: int = 100_000
    checks: int = 1_000_000
    seconds: float = 600.0


@dataclass(frozen=True)
class SolveVerdict:
    """What a solve found. "solved": the variables hold a solution of value `objective`, and no
    solution is below `bound`. "infeasible" is proven; "unknown" means that a limit came first.
    `limit` is "", "gap", "work" or "clock", as in `schemas.options`."""

    outcome: Outcome
    objective: float
    bound: float
    limit: str


def solve(
    program: pulp.LpProblem, engine: Engine, limits: Limits, warm: bool = False
) -> SolveVerdict:
    """Minimises a program; `warm` starts from the initial values of its variables."""
    return _SOLVERS[engine](program, limits, warm)


def _solved(objective: float, bound: float, limit: str) -> SolveVerdict:
    bound = min(bound, objective)
    met = objective - bound <= TOLERANCE * max(1.0, abs(objective))
    return SolveVerdict("solved", objective, objective if met else bound, "" if met else limit)


def _solve_highs(program: pulp.LpProblem, limits: Limits, warm: bool) -> SolveVerdict:
    import highspy

    class _Highs(pulp.HiGHS):
        """PuLP's HiGHS with a start, and without the reading of the result, which is done below."""

        def callSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802
            given = [(v.index, v.varValue) for v in lp.variables() if v.varValue is not None]
            if warm and given:
                columns, values = zip(*given, strict=True)
                lp.solverModel.setSolution(len(columns), list(columns), list(values))
            lp.solverModel.cbMipInterrupt.subscribe(Checks(limits.checks))
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
        return SolveVerdict("infeasible", math.inf, math.inf, "")
    done = model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    limit = "clock" if ended_by_clock(model) else "gap" if done else "work"
    if not has_solution(model):
        return SolveVerdict("unknown", math.inf, info.mip_dual_bound, limit)
    values = list(model.getSolution().col_value)
    for variable in program.variables():
        variable.varValue = values[variable.index]
    return _solved(info.objective_function_value, proven(model), limit)


def _solve_cbc(program: pulp.LpProblem, limits: Limits, warm: bool) -> SolveVerdict:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        log = Path(folder) / "log"
        solver = pulp.PULP_CBC_CMD(
            msg=False,
            threads=1,
            timeLimit=limits.seconds,
            gapRel=0.0,
            gapAbs=max(limits.gap, TOLERANCE / 10),
            maxNodes=limits.nodes,
            warmStart=warm,
            logPath=str(log),
        )
        solver.tmpDir = folder
        status = program.solve(solver)
        text = log.read_text()
    if status == pulp.LpStatusInfeasible:
        return SolveVerdict("infeasible", math.inf, math.inf, "")
    limit = "clock" if "Exiting on maximum time" in text else "work"
    if "Exiting on maximum" not in text:
        limit = "gap"
    found = re.findall(r"(?:Lower bound|best possible)[: ]+(-?[\d.]+(?:e[+-]?\d+)?)", text)
    if program.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return SolveVerdict(
            "unknown", math.inf, float(found[-1]) - _PRINTED if found else 0.0, limit
        )
    objective = pulp.value(program.objective) or 0.0
    optimal = program.sol_status == pulp.LpSolutionOptimal
    printed = float(found[-1]) - _PRINTED if found else -math.inf
    bound = max(objective - max(limits.gap, TOLERANCE / 10), printed) if optimal else printed
    return _solved(objective, bound, limit)


_SOLVERS: dict[Engine, Callable[[pulp.LpProblem, Limits, bool], SolveVerdict]] = {
    "highs": _solve_highs,
    "cbc": _solve_cbc,
}
