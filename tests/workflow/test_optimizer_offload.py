"""Whole steps with their optimizer as a configuration declares them, run for real on small models:
planned, validated, reported, audited, and redone as far as an edit asks for."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import Workplace
from tests.workflow.test_device_spec import text_of
from tests.workflow.test_plan import jobs
from tightfit.schemas.lineage import read_lineage
from tightfit.schemas.machine import MACHINES
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.optimizer_plan import read_optimizer_costs
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import schedule_optimizer_plan

FACTORY = '''
import torch


class Tower(torch.nn.Module):
    """Layers whose weights are large enough to be offloaded."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def tower(batch=64):
    return Tower().train(), ((torch.randn(batch, 512),), {})
'''
WHOLE: dict[str, Any] = {
    "factory": "mine:tower",
    "optimizer": {"name": "adamw", "lr": 2e-3, "weight_decay": 0.1},
    "offload": {"disk": "scratch"},
    "budgets": ["22MB", "1MB"],
}
PARTS: dict[str, Any] = {
    "factory": "mine:tower",
    "samples": [{"batch": 2048}, {"batch": 512}],
    "microbatches": [1, 4],
    "optimizer": {"name": "sgd", "momentum": 0.9},
    "offload": {"disk": "scratch", "limit": "100MB"},
    "budgets": ["min"],
}
HERE: dict[str, Any] = {
    "factory": "mine:tower",
    "arguments": {"batch": 8},
    "optimizer": {"name": "adamw"},
    "parameters": "device",
    "microbatches": [1, 2],
    "offload": {"disk": "scratch"},
    "budgets": ["20MB"],
}
PLANNED = {
    "planning the step with its optimizer for",
    "writing the module of optimizer_offload",
    "running the step with its optimizer for",
    "writing the trace of optimizer_offload",
}
"""The steps of a plan, without the budget that each names."""

Finished = tuple[Workplace, subprocess.CompletedProcess[str]]


def configuration(**changes: Any) -> dict[str, Any]:
    return {"models": {"whole": WHOLE, "parts": PARTS, "here": HERE}, "pairs": 1, **changes}


def planned(model: str, *budgets: str) -> set[str]:
    """What is done for budgets of a model and then for the run."""
    steps = {f"{model}: {step} {budget}" for step in PLANNED for budget in budgets}
    return steps | {f"{model}: writing the report", "writing the index"}


@pytest.fixture(scope="module")
def finished(quick: Workplace) -> Finished:
    """A run of a step for two budgets, of which one is too small, and of one of several
    microbatches of two sizes."""
    (quick.folder / "mine.py").write_text(FACTORY)
    (quick.folder / "scratch").mkdir()
    quick.configure(configuration())
    return quick, quick.snakemake()


@pytest.fixture
def place(finished: Finished) -> Workplace:
    """Where that ran, as it was configured."""
    finished[0].configure(configuration())
    return finished[0]


def point(place: Workplace, model: str, budget: str) -> Path:
    return place.folder / f"results/{model}/optimizer_offload/{budget}"


def test_a_step_is_planned_and_validated(finished: Finished) -> None:
    place, run = finished
    assert run.returncode == 0, run.stderr
    plan = read_plan(point(place, "whole", "22MB") / "plan.json")
    found = read_measurement(point(place, "whole", "22MB") / "measurement.arrow")
    assert plan.strategy == "optimizer_offload" and plan.budget_total == 22_000_000
    assert found.status == "feasible" and found.bits_equal and found.within_budget, found.message
    assert found.measured_peak == plan.peak and found.offload_peak == found.predicted_offload_peak
    updates = schedule_optimizer_plan(point(place, "whole", "22MB") / "schedule.arrow")
    assert updates is not None and updates.offloaded
    assert updates.settings == {"lr": 2e-3, "weight_decay": 0.1}
    module = (point(place, "whole", "22MB") / "module/__init__.py").read_text()
    assert "optimizer='AdamW'" in module and "'weight_decay': 0.1" in module
    known = read_optimizer_costs(place.folder / "results/whole/updates.json")
    assert (known.optimizer, known.settings) == ("AdamW", updates.settings)
    made = read_lineage(point(place, "whole", "22MB") / "plan.json")
    assert {Path(entry.path).name for entry in made.inputs} == {
        "graph.arrow", "costs.arrow", "machine.json", "updates.json"
    }  # fmt: skip


def test_the_smallest_of_several_microbatches_is_taken(place: Workplace) -> None:
    """For the least budget; for any other one the fastest is."""
    folder = point(place, "parts", "min")
    updates = schedule_optimizer_plan(folder / "schedule.arrow")
    assert updates is not None and updates.microbatches == 4
    assert (folder / "microbatch.arrow").exists()
    plan, found = read_plan(folder / "plan.json"), read_measurement(folder / "measurement.arrow")
    assert found.status == "feasible" and found.bits_equal, found.message
    assert found.measured_peak == plan.peak
    assert found.peak_as_predicted and found.within_budget and found.accumulate_peak is not None
    assert (place.folder / "results/parts/sample_2/graph.arrow").exists()


def test_parameters_that_stay_on_the_device_leave_the_disk_to_states(place: Workplace) -> None:
    folder = point(place, "here", "20MB")
    plan, found = read_plan(folder / "plan.json"), read_measurement(folder / "measurement.arrow")
    assert found.status == "feasible" and found.bits_equal, found.message
    assert found.measured_peak == plan.peak and found.peak_as_predicted
    updates = schedule_optimizer_plan(folder / "schedule.arrow")
    assert updates is not None and not updates.offloaded and updates.microbatches == 2
    assert found.offload_peak == updates.offloaded_state_bytes > 0
    assert read_lineage(folder / "plan.json").settings["parameters"] == "device"
    assert plan.microbatches == 2 and "(the least time per sample, compared with 1)" in plan.message


def test_a_budget_that_is_too_small_is_a_verdict(place: Workplace) -> None:
    plan = read_plan(point(place, "whole", "1MB") / "plan.json")
    assert plan.status == "infeasible" and "the budget min takes the least" in plan.message
    found = read_measurement(point(place, "whole", "1MB") / "measurement.arrow")
    assert found.status == "infeasible"


def test_table_index_and_report_show_the_step(place: Workplace) -> None:
    table = place.stage("summary", "--configuration", "config.yaml")
    assert table.returncode == 0, table.stderr
    assert "│ microbatches │" in table.stdout.replace("┃", "│")
    for words in (
        r"whole +│ optimizer_offload │ +22MB │ fits .*│ +1 │",
        r"parts .* min │ fits .*│ +4 │",
        r"here .* 20MB │ fits .*│ +2 │",
    ):
        assert re.search(words, table.stdout), table.stdout
    assert (
        "whole optimizer_offload 1MB: Does not fit 1MB (1,000,000 bytes in all): no plan"
        in table.stdout
    )
    index = (place.folder / "results/index.html").read_text()
    assert index.count('data-strategy="optimizer_offload"') == 4
    assert "<option>optimizer_offload</option>" in index
    page = place.folder / "results/whole/report.html"
    said = text_of(page)
    for words in (
        "AdamW (lr 0.002, weight_decay 0.1)",
        "buffers of the optimizer's states and updates",
        "parameters from the offload target",
        "bytes in disk/memory, at most",
        "updates of parameters",
        "states on their way",
    ):
        assert words in said.replace("&#39;", "'"), words
    assert "There are no blocks" not in said
    parts = text_of(place.folder / "results/parts/report.html")
    assert "Microbatches 4 a step" in parts and "SGD (momentum 0.9)" in parts
    assert "Microbatches 2 a step" in text_of(place.folder / "results/here/report.html")


def test_results_stand_an_audit_and_leftovers_are_told(place: Workplace) -> None:
    told = place.stage("audit", "results", "--configuration", "config.yaml")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "all is well" in told.stdout and "4 plans, 4 modules, 4 measurements" in told.stdout
    updates = place.folder / "results/whole/updates.json"
    before = updates.read_text()
    updates.write_text(before.replace("AdamW", "Adamant"))
    told = place.stage("audit", "results")
    updates.write_text(before)
    assert told.returncode == 1 and "'Adamant' is no optimizer that is known" in told.stdout
    assert place.stage("prune", "--dry-run").stdout == "results: nothing is left over\n"
    one = {**PARTS, "samples": [{"batch": 2048}], "microbatches": [1]}
    models = {"whole": {**WHOLE, "budgets": ["22MB"]}, "parts": one, "here": HERE}
    place.configure(configuration(models=models))
    assert place.stage("prune", "--dry-run").stdout.splitlines() == [
        "results/parts/sample_2: is left over",
        "results/whole/optimizer_offload/1MB: is left over",
    ]


def test_a_budget_costs_its_own_plan_and_nothing_is_done_twice(place: Workplace) -> None:
    again = place.snakemake("--dry-run")
    assert again.returncode == 0 and not jobs(again), again.stderr
    more = {**WHOLE, "budgets": ["22MB", "1MB", "min"]}
    place.configure(configuration(models={"whole": more, "parts": PARTS, "here": HERE}))
    run = place.snakemake("--dry-run", "--logger-tightfit-why")
    assert "whole, 5 steps: the budget min is new" in run.stderr, run.stderr
    assert jobs(place.snakemake("--dry-run")) == planned("whole", "min")


def test_another_optimizer_is_traced_and_linked_to_nothing_anew(place: Workplace) -> None:
    other = {**WHOLE, "optimizer": {"name": "adamw", "lr": 3e-3}}
    place.configure(configuration(models={"whole": other, "parts": PARTS, "here": HERE}))
    run = place.snakemake("--dry-run", "--logger-tightfit-why")
    assert "whole, 10 steps: optimizer.lr changed from 0.002 to 0.003" in run.stderr, run.stderr
    measured = {"whole: measuring each distinct op and update"}
    assert jobs(place.snakemake("--dry-run")) == planned("whole", "22MB", "1MB") | measured


def test_another_number_of_microbatches_plans_again(place: Workplace) -> None:
    other = {**PARTS, "microbatches": [2, 4]}
    place.configure(configuration(models={"whole": WHOLE, "parts": other, "here": HERE}))
    assert jobs(place.snakemake("--dry-run")) == planned("parts", "min")


def test_another_machine_plans_again_and_measures_nothing(place: Workplace) -> None:
    machine = place.folder / "results/whole/machine.json"
    (place.folder / "own.json").write_text(machine.read_text())
    place.configure(configuration(machine="own.json"))
    told = jobs(place.snakemake("--dry-run"))
    others = planned("parts", "min") | planned("here", "20MB")
    assert told == planned("whole", "22MB", "1MB") | others
    run = place.snakemake("--dry-run", "--logger-tightfit-why")
    assert "whole, 9 steps: the device is described, or its description was edited" in run.stderr


@pytest.mark.long
def test_a_step_of_a_described_device_is_planned_and_not_run(place: Workplace) -> None:
    document = json.loads((MACHINES / "rtx3060.json").read_text())
    document["memories"] = [{"name": "host", "memory": 64 * 10**9, "bandwidth": 4e10}]
    document["links"] = [{"between": ["cuda:0", "host"], "bandwidth": 1.2e10}]
    (place.folder / "described.json").write_text(json.dumps(document))
    model = {**WHOLE, "budgets": ["15MB"], "offload": {"limit": "1GB"}}
    changes = {"device": "described.json", "results": "described"}
    place.configure(configuration(models={"whole": model}, **changes))
    run = place.snakemake()
    assert run.returncode == 0, run.stderr
    assert "running" not in run.stderr and "measuring" not in run.stderr
    folder = place.folder / "described/whole/optimizer_offload/15MB"
    assert read_plan(folder / "plan.json").feasible
    assert not (folder / "module").exists() and (folder / "trace.json").exists()
    assert "Should fit 15MB" in text_of(place.folder / "described/whole/report.html")
    table = place.stage("summary", "--configuration", "config.yaml").stdout
    assert "not validated: planned for rtx3060, which is not here" in table
    told = place.stage("audit", "described", "--configuration", "config.yaml")
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.long
def test_a_gpt2_is_planned_for_the_least_budget_and_states_on_a_second_disk(
    place: Workplace, tiny: dict[str, Any]
) -> None:
    arguments = {**tiny["arguments"], "layers": 1, "width": 256, "vocabulary": 1100}
    (place.folder / "slow").mkdir()
    offload = {"disk": "scratch", "second_disk": "slow", "limit": "8MB"}
    model = {**tiny, "arguments": arguments, "optimizer": {"name": "adam"}, "offload": offload}
    place.configure(configuration(models={"gpt2": {**model, "budgets": ["min"]}}, results="tiers"))
    run = place.snakemake()
    assert run.returncode == 0, run.stderr
    folder = place.folder / "tiers/gpt2/optimizer_offload/min"
    found = read_measurement(folder / "measurement.arrow")
    assert found.status == "feasible" and found.bits_equal, found.message
    assert (found.offload_peak or 0) <= 8_000_000
    assert "of states are in the second offload tier, as predicted" in found.message
    assert "in the far-disk behind it" in text_of(place.folder / "tiers/gpt2/report.html")
