"""What the rooms that solve with HiGHS ask of it: an end by counted work, and what is proven."""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tightfit.util.errors import TightfitError

if TYPE_CHECKING:
    import numpy as np
    import pulp
    from highspy import Highs, HighsCallbackEvent
    from numpy.typing import NDArray


class MilpColumns(NamedTuple):
    """Columns of a program: each has a `cost` and is from `low` to `high`, a whole number where
    `integral` says so; that is None where none has to be."""

    cost: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    integral: Sequence[bool] | NDArray[np.bool_] | None


class MilpRows(NamedTuple):
    """Rows of a program, each from `low` to `high`: that at r weights the columns
    `column[start[r]:start[r + 1]]` by `value`."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    start: NDArray[np.int32]
    column: NDArray[np.int32]
    value: NDArray[np.float64]


def create_highs_model(options: Mapping[str, Any]) -> Highs:
    """A model that prints nothing, runs in one thread and does the same each time, with `options`
    beside these."""
    import highspy

    model = highspy.Highs()
    same = {"output_flag": False, "threads": 1, "random_seed": 0}
    for name, value in {**same, **options}.items():
        model.setOptionValue(name, value)
    return model


def load_highs_program(model: Highs, columns: MilpColumns, rows: MilpRows, checks: int) -> None:
    """Gives a model its program; one with whole numbers is stopped after so many `checks`."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns.cost), len(rows.low)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = columns.cost, columns.low, columns.high
    lp.row_lower_, lp.row_upper_ = rows.low, rows.high
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = rows.start
    lp.a_matrix_.index_ = rows.column
    lp.a_matrix_.value_ = rows.value
    if columns.integral is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(mark)] for mark in columns.integral]
        model.cbMipInterrupt.subscribe(InterruptCounter(checks))
    model.passModel(lp)


class InterruptCounter:
    """Tells HiGHS to stop after so many calls."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, event: HighsCallbackEvent) -> None:
        """Count a call of HiGHS; the last one interrupts it."""
        self.left -= 1
        if self.left <= 0 and event.data_in is not None:
            event.data_in.user_interrupt = True


def is_infeasible(model: Highs) -> bool:
    """True where a program that was run has no solution."""
    import highspy

    return model.getModelStatus() in (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
    )


def reached_time_limit(model: Highs) -> bool:
    """True where the clock ended the run."""
    import highspy

    return bool(model.getModelStatus() == highspy.HighsModelStatus.kTimeLimit)


def has_solution(model: Highs) -> bool:
    """True where a solution was found."""
    import highspy

    found: int = model.getInfo().primal_solution_status
    return bool(found == highspy.kSolutionStatusFeasible)


def proven_bound(model: Highs) -> float:
    """What no solution of an integer program is below. Where nothing is left for the tree, no bound
    of it is given: the solution is the optimum."""
    info = model.getInfo()
    known: float = (
        info.mip_dual_bound if info.mip_node_count >= 0 else info.objective_function_value
    )
    return known


def loosen_bound(bound: float, margin: float) -> float:
    """A bound that holds for a solver with tolerances: less by a margin, -inf where none is
    known."""
    return bound - margin if math.isfinite(bound) else -math.inf


CBC_BOUND_ROUNDING = 5e-4
"""CBC prints its bounds with three decimals."""
CBC_UNBOUNDED = 1e40
"""CBC prints a bound beyond this where it has none."""


@dataclass(frozen=True)
class CbcResult:
    """How a run ended: `infeasible` is proven, `found` says that the variables hold a solution, and
    `optimal` that this one is the best up to the gap. No solution is below `bound`, -inf where none
    was printed. `iterations` are those of the simplex method as far as they were printed. `limit`
    is what ended the run: "gap", "work" or "clock"."""

    infeasible: bool
    found: bool
    optimal: bool
    bound: float
    iterations: int
    limit: str


def solve_with_cbc(
    program: pulp.LpProblem, gap: float, nodes: int, seconds: float, warm: bool = False
) -> CbcResult:
    """Minimizes a program in one thread, to an absolute `gap`, within so many `nodes` of the search
    tree and, as the last guard, `seconds`; `warm` starts from the values that variables have.

    Raises TightfitError where CBC does not come to its end, as where it is killed or its files have
    no room."""
    import pulp

    class _Cbc(pulp.PULP_CBC_CMD):
        """PuLP's CBC, whose start leaves out the variables that have no value."""

        def writesol(self, filename: str, lp: Any, vs: Any, names: dict[str, str], *_: Any) -> bool:
            given = {v.name: v.varValue for v in vs if v.varValue is not None}
            lines = [
                f"{place:>7} {short} {given[name]:>15} {0:>23}\n"
                for place, (name, short) in enumerate(names.items())
                if name in given
            ]
            Path(filename).write_text("Stopped on time - objective value 0\n" + "".join(lines))
            return True

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        log = Path(folder) / "log"
        solver = _Cbc(
            msg=False,
            threads=1,
            timeLimit=seconds,
            gapRel=0.0,
            gapAbs=gap,
            maxNodes=nodes,
            warmStart=warm,
            logPath=str(log),
        )
        solver.tmpDir = folder
        try:
            status = program.solve(solver)
            text = log.read_text()
        except (pulp.PulpSolverError, OSError) as error:
            why = f" ({error.strerror})" if isinstance(error, OSError) else ""
            raise TightfitError(
                f"the solver CBC did not come to its end{why}: it was killed, as where memory runs "
                f"out, or {Path(folder).parent} has no room for its files"
            ) from error
    sound = (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return CbcResult(
        infeasible=status == pulp.LpStatusInfeasible,
        found=program.sol_status in sound,
        optimal=program.sol_status == pulp.LpSolutionOptimal,
        bound=_parse_bound(text),
        iterations=_parse_iterations(text),
        limit=_parse_limit(text),
    )


def _parse_limit(text: str) -> str:
    if "Exiting on maximum" not in text:
        return "gap"
    return "clock" if "Exiting on maximum time" in text else "work"


def _parse_bound(text: str) -> float:
    found = re.findall(r"(?:Lower bound|best possible)[: ]+(-?[\d.]+(?:e[+-]?\d+)?)", text)
    bound = float(found[-1]) - CBC_BOUND_ROUNDING if found else -math.inf
    return bound if abs(bound) < CBC_UNBOUNDED else -math.inf


def _parse_iterations(text: str) -> int:
    found = re.findall(r"Total iterations: +(\d+)|- (\d+) iterations", text)
    return max((int(count) for pair in found for count in pair if count), default=0)
