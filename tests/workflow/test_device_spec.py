"""A device that is not here, run for real on a tiny model: planned for, and not validated."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import Workplace
from tightfit.schemas.costs import read_costs
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.machine import MACHINES
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import read_schedule
from tightfit.stages.simulate.simulate import simulate

SAID = "not validated: planned for {name}, which is not here"

Finished = tuple[Workplace, subprocess.CompletedProcess[str]]


def configuration(tiny: dict[str, Any], device: str) -> dict[str, Any]:
    models = {"tiny": {**tiny, "budgets": ["3MB", "1kB"], "strategies": ["keep_all", "rotor"]}}
    return {"models": models, "device": device, "solver": {"engine": "none"}}


@pytest.fixture(scope="module")
def finished(quick: Workplace, tiny: dict[str, Any]) -> Finished:
    """A run for a device that the checkout describes, where an earlier one left a measurement."""
    quick.configure(configuration(tiny, "rtx3060"))
    point = quick.folder / "results/tiny/rotor/3MB"
    point.mkdir(parents=True)
    (point / "measurement.arrow").write_bytes(b"of an earlier plan")
    return quick, quick.snakemake()


def text_of(page: Path) -> str:
    """What a page says, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.read_text()).split())


def test_plans_are_made_and_none_is_validated(finished: Finished) -> None:
    place, run = finished
    assert run.returncode == 0, run.stderr
    results = place.folder / "results/tiny"
    assert "tiny: reading each distinct op off the description of the device" in run.stderr
    assert "against the model" not in run.stderr
    assert not [*results.rglob("measurement.arrow"), *results.rglob("memory_timeline.arrow")]
    assert not (place.folder / "store/profile").exists()
    point = results / "rotor/3MB"
    graph, costs = read_graph(results / "graph.arrow"), read_costs(results / "costs.arrow")
    assert (costs.device.name, costs.device.source) == ("rtx3060", "roofline")
    plan, steps = read_plan(point / "plan.json"), read_schedule(point / "schedule.arrow")
    assert plan.feasible and "; planned for rtx3060, which is not here" in plan.message
    assert simulate(graph, costs, steps).peak == plan.peak
    assert (point / "module/__init__.py").exists() and (point / "trace.json").exists()


def test_table_report_and_index_claim_no_check(finished: Finished) -> None:
    place, _ = finished
    said = SAID.format(name="rtx3060")
    table = place.stage("summary", "--configuration", "config.yaml").stdout
    assert f"tiny keep_all -, tiny rotor 3MB: {said}" in table
    assert re.search(r"rotor +│ +3MB │ should fit ", table), table
    for page in ("tiny/report.html", "index.html"):
        assert said in text_of(place.folder / "results" / page)
    report = text_of(place.folder / "results/tiny/report.html")
    assert "Should fit 3MB" in report and "Fits 3MB" not in report
    assert "by roofline of rtx3060" in report and "Not measured yet" not in report


def test_the_results_stand_an_audit(finished: Finished) -> None:
    place, _ = finished
    told = place.stage("audit", "results", "--configuration", "config.yaml")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "all is well" in told.stdout and "0 measurements" in told.stdout


@pytest.mark.long
def test_nothing_is_done_twice_and_an_edited_description_is_read_again(
    finished: Finished, tiny: dict[str, Any]
) -> None:
    place, _ = finished
    again = place.snakemake("--dry-run")
    assert again.returncode == 0 and "tiny:" not in again.stderr
    mine = place.folder / "mine.json"
    document = json.loads((MACHINES / "rtx3060.json").read_text())
    document["devices"][0]["memory"] = 1000
    mine.write_text(json.dumps(document))
    place.configure(configuration(tiny, "mine.json"))
    run = place.snakemake()
    assert run.returncode == 0, run.stderr
    assert "tracing" not in run.stderr and "reading each distinct op" in run.stderr
    table = place.stage("summary", "--configuration", "config.yaml").stdout
    assert "over device" in table
    assert "MB in all predicted, where rtx3060 has 1.0 kB; not validated" in table


def test_impossible_figures_end_in_a_sentence(quick: Workplace, tiny: dict[str, Any]) -> None:
    document = json.loads((MACHINES / "t4.json").read_text())
    document["devices"][0]["bandwidth"] = 0
    (quick.folder / "bad.json").write_text(json.dumps(document))
    quick.configure(configuration(tiny, "bad.json"))
    run = quick.snakemake("--dry-run")
    assert run.returncode == 1 and "Traceback" not in run.stderr
    sentence = "devices[0].bandwidth is 0, expected a number from 1000 to 1e+18"
    assert f"device: bad.json: {sentence}" in run.stderr
