"""`tightfit.plan_pipeline` and `load_pipeline`, as far as one process comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

import tightfit
from tests.stages.validate.pipelines import Words, machine, words
from tightfit import SolverOptions


def test_a_pipeline_is_planned_and_wants_its_processes(tmp_path: Path, store: Path) -> None:
    torch.manual_seed(0)
    model, (args, kwargs), loss = words()
    path = machine(tmp_path / "machine.json", 2, 50_000)
    made = tightfit.plan_pipeline(
        model, args, kwargs, loss=loss, machine=path, microbatches=2, store=store, progress=False
    )
    assert made.status in ("optimal", "feasible") and made.ranks == len(made.peaks) == 2
    assert all(peak < 50_000 for peak in made.peaks)
    for name in ("schedule.csv", "pipeline.json", "stage_1.py"):
        assert (made.package / name).exists()
    with pytest.raises(tightfit.ArtifactError, match="needs a group of processes: start them with"):
        tightfit.load_pipeline(made.package, model)
    with pytest.raises(tightfit.ArtifactError, match="the package has no function 'load'"):
        tightfit.load(made.package, model)


def test_what_cannot_be_a_pipeline_is_told(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, (args, _), loss = words()
    path = machine(tmp_path / "machine.json", 2, 1000)
    given: Any = {"machine": path, "store": store}
    with pytest.raises(
        tightfit.ConfigError, match="strategy is 'magic', expected one of pipedream"
    ):
        tightfit.plan_pipeline(model, args, loss=loss, strategy="magic", **given)
    with pytest.raises(tightfit.ConfigError, match="engine is 'glpk', expected one of highs, cbc"):
        tightfit.plan_pipeline(
            model, args, loss=loss, solver=SolverOptions(cast(Any, "glpk")), **given
        )
    with pytest.raises(tightfit.ConfigError, match="'cbc', and pipedream solves no integer"):
        solver = SolverOptions("cbc")
        tightfit.plan_pipeline(model, args, loss=loss, strategy="pipedream", solver=solver, **given)
    with pytest.raises(
        tightfit.ConfigError, match=r"2 devices of 1000 bytes; .* are known to work"
    ):
        tightfit.plan_pipeline(model, args, loss=loss, **given)
    told = capsys.readouterr().err.splitlines()
    stages = [line.split(" ", 2)[1] for line in told if line.startswith("tightfit: ")]
    assert list(dict.fromkeys(stages)) == ["1/6", "2/6", "3/6", "4/6"]
    machine(path, 2, 10**6)
    with pytest.raises(tightfit.ModelError, match="gives not one scalar for its backward"):
        tightfit.plan_pipeline(model, args, progress=False, **given)
    for wrong, said in (
        ({"microbatches": 0}, "microbatches is 0, expected a number from 1 to 4096"),
        ({"weight_copies": 1001}, "weight_copies is 1001, expected a number from 0 to 1000"),
        (
            {"stage_recompute": "rotor", "strategy": "pipedream"},
            "stage_recompute is 'rotor', which only the strategies .*madpipe.* take",
        ),
    ):
        with pytest.raises(tightfit.ConfigError, match=f"plan_pipeline: {said}"):
            tightfit.plan_pipeline(model, args, loss=loss, **{**given, **wrong})
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    with pytest.raises(tightfit.ArtifactError, match="is no pipeline, but for one device"):
        tightfit.load_pipeline(tmp_path / "package", Words())
