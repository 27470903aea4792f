"""Plans of eager's kernels that took the place of fused ones: stages by hand, report and audit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.audit.towers import stage
from tests.tightfit.fused_model import Wave
from tightfit.__main__ import main
from tightfit.schemas import store
from tightfit.schemas.costs import OpCost
from tightfit.schemas.graph.fused_groups import is_fused_group
from tightfit.schemas.graph.training_graph import has_fused_kernels
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.plan import Plan, read_plan
from tightfit.stages.audit.audit import audit
from tightfit.stages.fuse import compile_groups
from tightfit.stages.profile import measure
from tightfit.stages.report.load import load_model_results
from tightfit.stages.report.model_page import build_model_page


def wave() -> tuple[Any, ...]:
    """The factory."""
    return Wave().train(), ((torch.randn(64, 16),), {})


SOURCE = ("--factory", "tests.stages.audit.test_kernels:wave")
POINT = "rotor/1MB"


@pytest.fixture(scope="module", autouse=True)
def slow_groups() -> Iterator[None]:
    """Groups that are compiled and said to take a second."""
    made = measure.make_cost

    def priced(graph: Any, op: Any, *more: Any) -> OpCost:
        seconds = 1.0 if is_fused_group(op.target) else 1e-3
        return replace(made(graph, op, *more), seconds=seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "make_cost", priced)
        patch.setattr(compile_groups, "is_slower_than_aten", lambda body, device: False)
        yield


def files_of(folder: Path, prefix: str = "") -> tuple[Any, ...]:
    return (f"--{prefix}graph", folder / "graph.arrow", f"--{prefix}costs", folder / "costs.arrow")


def plan_step(folder: Path, kept: Path) -> None:
    """Fills a folder with all that is made of its graph up to frontiers."""
    files, blocks, options = files_of(folder), folder / "blocks.arrow", folder / "options.arrow"
    stage("profile", *SOURCE, *files[:2], "--library", kept, "--out", folder / "costs.arrow")
    stage("partition", *files, "--out", blocks)
    stage("solve", "--blocks", blocks, "--store", kept, "--solver", "none", "--out", options)
    solved = ("--blocks", blocks, "--options", options)
    for strategy in ("rotor", "keep_all"):
        out = folder / strategy / "frontier.arrow"
        stage("combine", *files, *solved, "--strategy", strategy, "--out", out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with fused kernels, and of plans for which eager's are faster."""
    above = tmp_path_factory.mktemp("kernels")
    model, kept = above / "results/wave", above / "store"
    named = (*SOURCE, "--name", "wave")
    stage("trace", *named, "--channels-last", "--out", model / "eager.arrow")
    stage("fuse", "--graph", model / "eager.arrow", "--out", model / "graph.arrow")
    stage("trace", *named, "--out", model / "eager/graph.arrow")
    for folder in (model, model / "eager"):
        plan_step(folder, kept)
    for strategy, budget, name in (("keep_all", "none", "none"), ("rotor", "1MB", "1MB")):
        made_at(model, strategy, budget, name)
    stage("report", "--model-dir", model, "--out", model / "report.html")
    return model


def made_at(model: Path, strategy: str, budget: str, name: str) -> None:
    """A plan with all that is made of it."""
    point, beside = model / strategy / name, model / "eager" / strategy / name
    files = ("--frontier", model / strategy / "frontier.arrow", *files_of(model))
    eager = ("--eager-frontier", model / "eager" / strategy / "frontier.arrow")
    eager += (*files_of(model / "eager", "eager-"), "--eager-out", beside)
    stage("select", *files, *eager, "--budget", budget, "--out", point)
    graphs = ("--graph", model / "graph.arrow", model / "eager/graph.arrow")
    schedule, plan = ("--schedule", point / "schedule.arrow"), ("--plan", point / "plan.json")
    carried = [
        word
        for what, file in (
            ("graph", model / "eager/graph.arrow"),
            ("schedule", beside / "schedule.arrow"),
            ("plan", beside / "plan.json"),
        )
        for word in (f"--eager-{what}", file)
    ]
    stage("generate", *graphs, *schedule, *plan, *carried, "--out", point / "module")
    stage("report", "--perfetto", point / "schedule.arrow", *graphs, "--out", point / "trace.json")
    keep_all = ("--keep-all", model / "keep_all/none/module")
    module = ("--module", point / "module", *keep_all, "--pairs", 0)
    stage("validate", *SOURCE, *graphs, *plan, *module, "--out", point / "measurement.arrow")


@pytest.fixture
def model(finished: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    shutil.copytree(finished.parents[1], tmp_path / "run")
    return tmp_path / "run/results/wave"


def test_eagers_plan_is_taken_where_it_is_faster(finished: Path) -> None:
    plan = read_plan(finished / POINT / "plan.json")
    other = read_plan(finished / "eager" / POINT / "plan.json")
    assert (plan.kernels, plan.groups, plan.compiled, plan.budget) == ("eager", 0, 0, "1MB")
    assert plan.competing_plan is not None and plan.competing_plan.kernels == "fused"
    assert plan.time == other.time
    assert (
        plan.competing_plan.time is not None
        and plan.time is not None
        and plan.time < plan.competing_plan.time
    )
    assert "; with eager's kernels, as fused ones would take" in plan.message
    assert "KERNELS = 'eager'" in (finished / POINT / "module/__init__.py").read_text()


def test_its_module_runs_eagers_kernels_alone(finished: Path) -> None:
    assert not {"groups.py", "eager.py"} & {
        path.name for path in (finished / POINT / "module").iterdir()
    }
    found = read_measurement(finished / POINT / "measurement.arrow")
    assert found.bits_equal and found.peak_as_predicted
    assert "ernels are" not in found.message


def test_a_baseline_has_the_kernels_that_were_asked_for(finished: Path) -> None:
    point = finished / "keep_all/none"
    plan = read_plan(point / "plan.json")
    assert plan.kernels == "fused"
    assert plan.groups and plan.compiled
    assert plan.competing_plan is not None and plan.competing_plan.kernels == "eager"
    assert (point / "module/eager.py").exists()
    found = read_measurement(point / "measurement.arrow").message
    assert found.startswith("Fused kernels are ")
    assert "beside it has eager's bits and takes" in found


def test_all_of_it_is_audited(finished: Path) -> None:
    assert audit(finished).complaints == []


def test_the_page_says_which_kernels_a_plan_runs(finished: Path) -> None:
    page = build_model_page(load_model_results(finished))
    panels = {panel.name: dict(panel.facts) for panel in page.panels}
    taken = panels["rotor at 1MB, eager's kernels"]
    assert taken["Kernels"] == "eager's"
    assert "Predicted with fused kernels" in taken
    assert panels["keep_all"]["Kernels"].startswith("fused, ")
    assert page.curve is not None
    assert "rotor, eager's kernels" in {series.strategy for series in page.curve.series}
    assert all(panel.memory is not None for panel in page.panels)


def doctored(folder: Path, **changes: Any) -> list[str]:
    """What an audit says of a plan with other figures, beside that it was changed."""
    path = folder / "plan.json"
    document = json.loads(path.read_text())
    for key, value in changes.items():
        part, _, inner = key.partition("__")
        if inner:
            document[part][inner] = value
        else:
            document[part] = value
    store.write_json(path, document)
    model = folder.parents[1] if folder.parents[1].name != "eager" else folder.parents[2]
    return [said.removeprefix(f"{path}: ") for said in audit(model).complaints]


@pytest.mark.parametrize(
    ("place", "changes", "said"),
    [
        (
            POINT,
            {"competing_plan__time": 1e-9},
            "is worse than the plan of fused kernels that it names",
        ),
        (POINT, {"competing_plan__time": 1e9}, "with fused kernels a plan of theirs takes"),
        (
            "keep_all/none",
            {"competing_plan__time": None},
            "with eager kernels a plan of theirs takes",
        ),
        (
            POINT,
            {"competing_plan__keep_all_total": 10**6},
            "keeping everything with fused kernels takes",
        ),
        (
            POINT,
            {"competing_plan__kernels": "eager"},
            "was compared with a plan of the same kernels",
        ),
        ("keep_all/none", {"groups": 99}, "runs 99 groups as"),
        ("keep_all/none", {"kernels": "eager"}, "is the schedule of another graph"),
        (f"eager/{POINT}", {"kernels": "fused"}, "is a plan of fused kernels, "),
    ],
)
def test_a_doctored_plan_is_named(
    place: str, changes: dict[str, Any], said: str, model: Path
) -> None:
    assert any(said in each for each in doctored(model / place, **changes))


def test_the_graph_of_a_plan_has_to_be_among_those_given(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    point = model / POINT
    fused = model / "graph.arrow"
    assert has_fused_kernels(fused)
    words = ["--schedule", point / "schedule.arrow", "--plan", point / "plan.json", "--out", "m"]
    assert main(["generate", "--graph", str(fused), str(fused), *map(str, words)]) == 1
    assert "schedule.arrow: is the schedule of another graph" in capsys.readouterr().err


def test_what_is_given_of_eagers_kernels_is_whole(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*files_of(model), "--frontier", model / "rotor/frontier.arrow", "--budget", "1MB"]
    words += ["--eager-out", "m", "--out", "n"]
    assert main(["select", *map(str, words)]) == 1
    assert "select takes --eager-graph, --eager-costs," in capsys.readouterr().err


def test_plans_from_before_are_read(model: Path) -> None:
    path = model / POINT / "plan.json"
    document = json.loads(path.read_text())
    for key in ("kernels", "groups", "compiled", "competing_plan"):
        del document[key]
    store.write_json(path, document)
    plan: Plan = read_plan(path)
    assert (plan.kernels, plan.groups, plan.compiled, plan.competing_plan) == (
        None,
        None,
        None,
        None,
    )
