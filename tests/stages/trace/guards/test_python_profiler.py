"""Python's profiler is given back as it was."""

from __future__ import annotations

import cProfile
import sys
from typing import Any

import pytest

from tightfit.stages.trace.guards.global_state import install_profiler


def _quiet(*_: Any) -> None: ...


def _seen() -> None: ...


@pytest.mark.parametrize("before", [None, _quiet])
def test_a_function_or_none_is_given_back(before: Any) -> None:
    sys.setprofile(before)
    try:
        with install_profiler(lambda *_: None):
            pass
        assert sys.getprofile() is before
    finally:
        sys.setprofile(None)


def test_cprofile_is_given_back_and_goes_on() -> None:
    with cProfile.Profile() as profiler:
        with install_profiler(lambda *_: None):
            pass
        _seen()
    assert "_seen" in {getattr(entry.code, "co_name", "") for entry in profiler.getstats()}
    assert sys.getprofile() is None
