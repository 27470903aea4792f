"""Exceptions in code of a user, and the calls that led to them, as text."""

from __future__ import annotations

import os
import sysconfig
import traceback
from functools import cache
from pathlib import Path

MAX_CALLS = 5
"""The calls that are shown of those that led to an exception."""


def describe_error(error: BaseException) -> str:
    """An error's type and the first line of its message, which may be one that cannot be made."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = ["an exception without a text"]
    return type(error).__name__ + (f": {lines[0]}" if lines else "")


def describe_error_location(error: BaseException) -> str:
    """The innermost line outside of Python's library and installed packages that an exception came
    through, as "FILE, line 3, in FUNCTION"; the innermost of all if there is none, "" without one.
    """
    calls = _user_calls(error)
    own = [call for call in calls if not call.filename.startswith(_library_folders())]
    return "".join(
        f"{_short_path(call.filename)}, line {call.lineno}, in {call.name}"
        for call in (own or calls)[-1:]
    )


def format_last_calls(error: BaseException) -> str:
    """The last calls that led to an exception, the innermost last, with file, line and code; ""
    without any."""
    calls = _user_calls(error)[-MAX_CALLS:]
    return "".join(traceback.format_list(calls)).rstrip("\n")


def _user_calls(error: BaseException) -> list[traceback.FrameSummary]:
    """The calls behind the first one, which is that of tightfit; imports leave calls of Python."""
    behind = error.__traceback__ and error.__traceback__.tb_next
    calls = traceback.extract_tb(behind)
    return [call for call in calls if not call.filename.startswith("<frozen")]


@cache
def _library_folders() -> tuple[str, ...]:
    paths = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return tuple({f"{path}{os.sep}" for path in paths if path})


def _short_path(file: str) -> str:
    """A path below the working directory from there on, any other one in full."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
