"""Where in the user's code an error began."""

from __future__ import annotations

import torch

from tightfit.stages.trace.code_inspection import error_location


def _failing() -> None:
    torch.ones(2) @ torch.ones(3)


def _error_of(function: object) -> BaseException:
    try:
        function()  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("no error")


def test_an_error_is_located_where_the_users_code_met_it() -> None:
    file, _, line = error_location(_error_of(_failing)).rpartition(":")
    assert file.endswith("tests/stages/trace/test_error_location.py")
    assert int(line) == _failing.__code__.co_firstlineno + 1
