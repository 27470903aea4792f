"""What functions run, what they have around them, and whose they are."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from tightfit.stages.device.readings import ABSENT


def of_plan(names: dict[str, Any]) -> bool:
    """True for the globals of a generated package, whose code runs around a planned part."""
    package = sys.modules.get(names.get("__package__") or "")
    return hasattr(package, "PlanMismatch") and hasattr(package, "PREDICTED_PEAK")


def own_code(file: str) -> bool:
    """True for a file of tightfit's stages."""
    return file.startswith(_OWN)


_OWN = __file__.rpartition("/trace/")[0]


def cells_of(function: Any) -> Iterator[tuple[str, types.CellType]]:
    """The cells of a function's closure with their names."""
    if isinstance(function, types.FunctionType) and function.__closure__:
        yield from zip(function.__code__.co_freevars, function.__closure__, strict=True)


def content_of(cell: types.CellType) -> Any:
    """What a cell holds, ABSENT where it holds nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def defaults_of(function: Any) -> dict[str, Any]:
    """The defaults of a function's arguments by name."""
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(given) :]
    return {**dict(zip(names, given, strict=True)), **(function.__kwdefaults__ or {})}


def is_of_functools(function: types.FunctionType) -> bool:
    """True for a function that `functools` made, as of single dispatch."""
    return function.__globals__.get("__name__") == "functools"


def has_own(function: types.FunctionType) -> bool:
    """True for a function that others of the same code may differ from."""
    return bool(
        function.__closure__ or function.__defaults__ or function.__kwdefaults__ or vars(function)
    )
