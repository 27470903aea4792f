"""A model with dynamic dimensions in the configuration, run for real: traced once, validated at
several sizes, reported and audited."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import Workplace
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.plan import read_plan

FACTORY = """
import torch


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x, scale):
        return self.last((self.first(x) * scale).tanh().exp())


def tower(batch=6):
    return Tower().train(), ((torch.randn(batch, 12, 16),), {"scale": torch.rand(batch, 12, 1)})
"""
MODEL: dict[str, Any] = {
    "factory": "mine:tower",
    "dynamic": {"x": {0: "batch", 1: "2*pairs"}, "scale": {0: "batch", 1: "2*pairs"}},
    "dimensions": {"pairs": {"min": 2, "max": 8}},
    "strategies": ["rotor"],
    "budgets": ["50%"],
}


MODELS = {"tower": MODEL, "pair": MODEL | {"plans": 2}}
"""A model with one plan for all sizes, and with two."""


@pytest.fixture(scope="module")
def finished(quick: Workplace) -> Workplace:
    """A run of models whose calls have several sizes."""
    (quick.folder / "mine.py").write_text(FACTORY)
    settings = {"solver": {"engine": "none"}, "pairs": 1, "frontier": False}
    quick.configure({"models": MODELS, **settings})
    run = quick.snakemake()
    assert run.returncode == 0, run.stdout + run.stderr
    return quick


@pytest.fixture
def results(finished: Workplace) -> Path:
    return finished.folder / "results/tower"


def test_one_plan_is_validated_at_several_sizes(results: Path) -> None:
    graph = read_graph(results / "graph.arrow")
    assert graph.dynamic is not None
    assert graph.dynamic.describe() == "batch from 2 to 6, pairs from 2 to 8"
    assert [graph.values[value].shape for value in graph.inputs] == [[6, 16, 16], [6, 16, 1]]
    point = results / "rotor/50pct"
    plan, found = read_plan(point / "plan.json"), read_measurement(point / "measurement.arrow")
    assert plan.dynamic is not None and plan.peak is not None
    sizes = [{"batch": 2, "pairs": 2}, {"batch": 4, "pairs": 5}, {"batch": 3, "pairs": 3}]
    assert [one.sizes for one in plan.dynamic.peaks] == [*sizes, {"batch": 5, "pairs": 6}]
    assert found.bits_equal and found.peak_as_predicted
    assert len(found.sizes) == 4 and all(one.bits_equal for one in found.sizes)
    for promised, measured in zip(plan.dynamic.peaks, found.sizes, strict=True):
        assert promised.sizes == measured.sizes
        assert promised.peak == measured.predicted_peak == measured.measured_peak
        assert promised.peak < plan.peak
    assert "pairs from 2 to 8: the same bits" in found.message


def test_the_run_is_told_and_audited(finished: Workplace, results: Path) -> None:
    page = (results / "report.html").read_text()
    assert "Calls have batch from 2 to 6, pairs from 2 to 8. Bytes and times are those of" in page
    assert "At batch = 2, pairs = 2" in page and "as predicted to the byte, the same bits" in page
    table = finished.stage("summary")
    said = "tower rotor 50%: batch from 2 to 6, pairs from 2 to 8, bytes are those of the largest"
    assert f"{said}; validated at 5 sizes" in table.stdout, table.stdout
    audit = finished.stage("audit", "results", "--configuration", "config.yaml")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    lineage = finished.stage("lineage", str(results / "graph.arrow"))
    assert "2*pairs" in lineage.stdout
    shown = finished.stage("show", str(results / "rotor/50pct/measurement.arrow"), "--json")
    assert shown.returncode == 0 and json.loads(shown.stdout)


def test_small_calls_have_a_second_plan(finished: Workplace) -> None:
    point = finished.folder / "results/pair/rotor/50pct"
    plan, found = read_plan(point / "plan.json"), read_measurement(point / "measurement.arrow")
    assert plan.dynamic is not None and plan.dynamic.small is not None
    small = {"batch": 6, "pairs": 5}
    assert plan.dynamic.small.sizes == small == found.sizes[-1].sizes
    assert found.sizes[-1].measured_peak == plan.dynamic.small.peak
    assert found.bits_equal and all(one.bits_equal for one in found.sizes)
    assert (point / "module/small_sizes_step.py").exists()
    page = (finished.folder / "results/pair/report.html").read_text()
    assert "Second plan for calls with pairs up to 5" in page
    table = finished.stage("summary")
    assert "a second plan for calls with pairs up to 5, predicted" in table.stdout, table.stdout


def test_a_changed_range_is_traced_anew(finished: Workplace) -> None:
    changed = copy.deepcopy(MODEL)
    changed["dimensions"]["pairs"]["max"] = 7
    settings = {"solver": {"engine": "none"}, "pairs": 1, "frontier": False}
    finished.configure({"models": MODELS | {"tower": changed}, **settings})
    run = finished.snakemake("--dry-run")
    finished.configure({"models": MODELS, **settings})
    assert run.returncode == 0 and "trace" in run.stdout + run.stderr
