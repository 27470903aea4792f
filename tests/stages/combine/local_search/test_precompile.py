"""The search is compiled ahead, with a word where that takes a while."""

from __future__ import annotations

import runpy

import pytest

from tightfit.util import code_cache
from tightfit.util.code_cache import COMPILING_NOTE
from tightfit.util.progress import NOTE_PREFIX


@pytest.mark.parametrize("kept", [False, True])
def test_compiling_is_told_where_it_takes_a_while(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(code_cache, "is_cached", lambda function: kept)
    runpy.run_module("tightfit.stages.combine.local_search.precompile", run_name="__main__")
    assert capsys.readouterr().out == ("" if kept else f"{NOTE_PREFIX}{COMPILING_NOTE}\n")
