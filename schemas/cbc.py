"""What the rooms that solve with CBC, through PuLP, ask of it: how it ended, and what is proven."""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.schemas.errors import TightfitError

if TYPE_CHECKING:
    import pulp

PRINTED = 5e-4
"""CBC prints its bounds with three decimals."""
UNKNOWN = 1e40
"""CBC prints a bound beyond this where it has none."""


@dataclass(frozen=True)
class CbcRun:
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


def run_cbc(
    program: pulp.LpProblem, gap: float, nodes: int, seconds: float, warm: bool = False
) -> CbcRun:
    """Minimises a program in one thread, to an absolute `gap`, within so many `nodes` of the search
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
    return CbcRun(
        infeasible=status == pulp.LpStatusInfeasible,
        found=program.sol_status in sound,
        optimal=program.sol_status == pulp.LpSolutionOptimal,
        bound=_printed_bound(text),
        iterations=_printed_iterations(text),
        limit=_limit(text),
    )


def _limit(text: str) -> str:
    if "Exiting on maximum" not in text:
        return "gap"
    return "clock" if "Exiting on maximum time" in text else "work"


def _printed_bound(text: str) -> float:
    found = re.findall(r"(?:Lower bound|best possible)[: ]+(-?[\d.]+(?:e[+-]?\d+)?)", text)
    bound = float(found[-1]) - PRINTED if found else -math.inf
    return bound if abs(bound) < UNKNOWN else -math.inf


def _printed_iterations(text: str) -> int:
    found = re.findall(r"Total iterations: +(\d+)|- (\d+) iterations", text)
    return max((int(count) for pair in found for count in pair if count), default=0)
