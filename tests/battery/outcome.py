"""Runs a use on an original and on its planned module, and says what came of it."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import nn

from tests.battery.case import Case
from tests.battery.registry import Use
from tests.battery.use_context import NotApplicable, Run
from tightfit.util.errors import TightfitError

Load = Callable[[nn.Module], nn.Module]

EQUAL, REFUSED, WRONG, RAW = "equal", "refused", "wrong", "raw"
BOTH, VARIES, BEYOND, NONE = "both raise", "eager varies", "not promised", "-"
KINDS = (EQUAL, REFUSED, WRONG, RAW, BOTH, VARIES, BEYOND, NONE)
BAD = (WRONG, RAW)

GOES_ON = "goes on where eager raises"
REPEATS = 5
"""Runs of the original that have to agree before a plan that differs is wrong: what reads memory
that nothing wrote gives the same twice by chance."""
LONGEST = 600
"""Characters of the longest sentence that a person reads to the end."""


@dataclass(frozen=True)
class Outcome:
    """What came of a use, and the sentence or the difference."""

    kind: str
    detail: str = ""


def judge(case: Case, use: Use, load: Load) -> Outcome:
    """What came of a use of a planned module beside the original."""
    theirs, expected = observe(case, use, lambda model: model)
    if isinstance(expected, NotApplicable):
        return Outcome(NONE)
    mine, error = observe(case, use, load, planned=True)
    found = _outcome(case, mine, error, theirs, expected)
    if found.kind in BAD and not use.promised:
        return Outcome(BEYOND, found.detail)
    if found.kind == WRONG:
        for _ in range(REPEATS):
            repeated, _ = observe(case, use, lambda model: model)
            if differs := repeated.trail.difference(theirs.trail):
                return Outcome(VARIES, differs)
    return found


def observe(
    case: Case, use: Use, load: Load, planned: bool = False
) -> tuple[Run, BaseException | None]:
    """Runs a use on what `load` makes of a new model; the run, and what was raised."""
    error: BaseException | None = None
    run = Run(case, nn.Identity(), load)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with run.started():
            try:
                run.module = load(case.make(planned))
                use.run(run)
                run.state()
            except Exception as raised:
                error = raised
    return run, error


def _outcome(
    case: Case, mine: Run, error: BaseException | None, theirs: Run, expected: BaseException | None
) -> Outcome:
    differs = mine.trail.difference(theirs.trail)
    if differs:
        return Outcome(WRONG, differs)
    seen, wanted = len(mine.trail.entries), len(theirs.trail.entries)
    if expected is not None:
        if error is None or seen > wanted:
            return Outcome(WRONG, f"{GOES_ON} {_line(expected)}")
        return Outcome(BOTH, _line(error))
    if error is None:
        return Outcome(EQUAL) if seen == wanted else Outcome(WRONG, "saw more or less than eager")
    return refusal(error)


def refusal(error: BaseException) -> Outcome:
    """Whether an error is a refusal in one sentence of our own, or a raw one."""
    text = str(error)
    plain = "\n" not in text and 0 < len(text) <= LONGEST
    ours = isinstance(error, TightfitError) or type(error).__name__ == "PlanMismatch"
    ours = ours or (type(error) is RuntimeError and _raised_by_package(error.__traceback__))
    return Outcome(REFUSED if ours and plain else RAW, _line(error))


def _raised_by_package(traceback: TracebackType | None) -> bool:
    """True when the innermost frame is a `raise` of a generated package or of a stage."""
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = traceback.tb_frame
    name = str(frame.f_globals.get("__name__", ""))
    if not name.startswith(("tightfit.", "tightfit_module_", "generated_")):
        return False
    line = linecache.getline(frame.f_code.co_filename, traceback.tb_lineno)
    return line.strip().startswith("raise ")


def _line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
