"""The search is compiled ahead, with a word where that takes a while."""

from __future__ import annotations

import runpy
from pathlib import Path

import pyarrow as pa
import pytest

from tightfit.schemas import store
from tightfit.stages.combine.local_search import precompile
from tightfit.stages.combine.select_task import SelectionRequest, SelectionTask
from tightfit.util import code_cache
from tightfit.util.code_cache import COMPILING_NOTE
from tightfit.util.progress import NOTE_PREFIX, StageProgress


@pytest.mark.parametrize("kept", [False, True])
def test_compiling_is_told_where_it_takes_a_while(
    kept: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(code_cache, "is_cached", lambda function: kept)
    runpy.run_module("tightfit.stages.combine.local_search.precompile", run_name="__main__")
    assert capsys.readouterr().out == ("" if kept else f"{NOTE_PREFIX}{COMPILING_NOTE}\n")


@pytest.mark.parametrize(("budget", "search"), [("50%", True), ("50%", False), ("none", True)])
def test_compiling_is_over_before_searches_are_counted(
    budget: str, search: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else the time of the first searches would be taken for that of all others."""
    told: list[str] = []

    class Progress(StageProgress):
        def note(self, text: str) -> None:
            told.append(text)

    class Search:
        def __init__(self, _: object) -> None: ...

        def improve(self, _: object, budget: int) -> None:
            told.append(f"compiled for {budget}")

    def choose(_: SelectionRequest, progress: StageProgress, total: int | None) -> None:
        told.append("chosen")
        raise KeyboardInterrupt

    monkeypatch.setattr(code_cache, "is_cached", lambda function: False)
    monkeypatch.setattr(precompile, "is_cached", lambda function: False)
    monkeypatch.setattr(precompile, "LocalSearch", Search)
    monkeypatch.setattr(SelectionRequest, "chosen", choose)
    files = (tmp_path / "graph.arrow", tmp_path / "costs.arrow", tmp_path / "frontier.arrow")
    store.write(files[2], store.ArtifactType("tightfit.frontier", 1, pa.schema([])), [])
    request = SelectionRequest(*files, budget, search=search)
    with pytest.raises(KeyboardInterrupt):
        SelectionTask(request, tmp_path / "out").run(Progress())
    compiled = [COMPILING_NOTE, "compiled for 3", "compiled for 4"]
    assert told == [*(compiled if search and budget != "none" else []), "chosen"]
