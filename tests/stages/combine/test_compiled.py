"""The search is compiled ahead, with a word where that takes a while."""

from __future__ import annotations

import runpy

import pytest

from tightfit.schemas import compiled
from tightfit.schemas.compiled import COMPILING


@pytest.mark.parametrize("kept", [False, True])
def test_compiling_is_told_where_it_takes_a_while(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "is_kept", lambda function: kept)
    runpy.run_module("tightfit.stages.combine.compiled", run_name="__main__")
    assert capsys.readouterr().out == ("" if kept else COMPILING + "\n")
