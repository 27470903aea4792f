"""Runs a program by CBC, through PuLP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tightfit.schemas.cbc import run_cbc
from tightfit.stages.combine.moment.limits import NOTHING_FOUND, Ended, Limits, Start
from tightfit.stages.combine.moment.matrix import SparseProgram

if TYPE_CHECKING:
    from pulp import LpConstraint, LpProblem, LpVariable

_Model: TypeAlias = "tuple[LpProblem, list[LpVariable], list[LpConstraint]]"
SCALE = 1e4
"""What costs are multiplied by: CBC prints its bounds with three decimals, and costs are shares of
the step."""
SMALLEST_GAP = 1e-7


def by_cbc(program: SparseProgram, limits: Limits, whole: bool, start: Start | None) -> Ended:
    """Runs a program, with whole numbers where `whole` says so, from a start where there is one."""
    model, columns, rows = _model(program, whole)
    for column, value in start or ():
        columns[column].varValue = value
    gap = SCALE * max(limits.gap, SMALLEST_GAP)
    run = run_cbc(model, gap, limits.nodes, limits.seconds, warm=bool(start))
    values = NOTHING_FOUND
    if run.found:
        # PuLP leaves out columns that are in no row and cost nothing.
        pairs = zip(columns, program.low, strict=True)
        values = np.array([low if c.varValue is None else c.varValue for c, low in pairs])
    prices = NOTHING_FOUND
    if run.found and not whole:
        prices = np.array([row.pi for row in rows], np.float64) / SCALE
    objective = float(program.cost @ values) if run.found else math.inf
    sure = objective - gap / SCALE if run.optimal else -math.inf
    return Ended(
        infeasible=run.infeasible,
        values=values,
        prices=prices,
        bound=min(max(sure, run.bound / SCALE), objective),
        iterations=run.iterations,
        clock=run.limit == "clock",
    )


def _model(program: SparseProgram, whole: bool) -> _Model:
    import pulp

    model = pulp.LpProblem("program", pulp.LpMinimize)
    kinds = [pulp.LpInteger if whole and mark else pulp.LpContinuous for mark in program.integral]
    columns = [
        model.add_variable(f"c{number}", low, high, kind)
        for number, (low, high, kind) in enumerate(
            zip(program.low.tolist(), program.high.tolist(), kinds, strict=True)
        )
    ]
    costs = (program.cost * SCALE).tolist()
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
