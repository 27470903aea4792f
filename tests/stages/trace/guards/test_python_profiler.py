"""Python's profiler is given back as it was."""

from __future__ import annotations

import cProfile
import sys
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tightfit.stages.trace.constant_folding import ConstantFolder
from tightfit.stages.trace.forward_operators import ForwardOperatorsMode
from tightfit.stages.trace.guards.global_state import install_profiler
from tightfit.stages.trace.random_states import RandomStates


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


def test_what_a_capture_does_with_an_operator_is_not_seen() -> None:
    files: set[str] = set()
    known = ConstantFolder()
    mode = ForwardOperatorsMode(known, RandomStates("model", known))
    with (
        FakeTensorMode(),
        install_profiler(lambda frame, *_: files.add(frame.f_code.co_filename)),
        mode,
    ):
        _seen()
        torch.ones(3).add(1)
    assert __file__ in files
    assert not [file for file in files if file.endswith(("constant_folding.py", "fake_tensor.py"))]
