"""Pipelines that a configuration declares, run for real: from the plan to what is left over."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import Workplace
from tightfit.schemas.pipeline_measurement import read_pipeline_measurement

MINE = """import torch
from torch import nn
from layers import Layer

def tower(width=16, depth=4):
    activations = [nn.GELU() for _ in range(depth)]
    model = nn.Sequential(*[Layer(width, activation) for activation in activations])
    return model.train(), ((torch.randn(32, width),), {}), lambda output: output.square().mean()

def lossless(width=16):
    return tower(width)[:2]
"""
LAYERS = """from torch import nn

class Layer(nn.Module):
    def __init__(self, width, activation):
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.activation = activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))
"""

TWO = {"machine": "two.json", "strategies": ["one_f_one_b"], "microbatches": 2}
MODELS = {
    "ran": {"factory": "mine:tower", "pipeline": TWO},
    "far": {"factory": "mine:tower", "pipeline": {**TWO, "machine": "far.json"}},
}

Run = subprocess.CompletedProcess[str]


def machine(path: Path, *devices: str, memory: int = 10**6, bandwidth: float = 1e9) -> None:
    """Describes equal devices in a row."""
    links = [
        {"between": [one, other], "bandwidth": bandwidth}
        for number, one in enumerate(devices)
        for other in devices[:number]
    ]
    document = {"artifact": "tightfit.machine/1", "name": path.stem, "links": links}
    equal = [{"name": name, "memory": memory} for name in devices]
    path.write_text(json.dumps({**document, "devices": equal}))


def describe_machines(folder: Path) -> None:
    machine(folder / "two.json", "cpu:0", "cpu:1")
    machine(folder / "far.json", "cuda:0", "cuda:1", memory=100)


def write_sources(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    (folder / "layers.py").write_text(LAYERS)


def configuration(models: dict[str, Any] = MODELS, **changes: Any) -> dict[str, Any]:
    return {"models": models, "solver": {"engine": "none"}, **changes}


def steps(run: Run) -> set[str]:
    """What a run did or would do, in the words of the rules."""
    return {line.partition("] ")[2] for line in run.stderr.splitlines() if line[:1] == "["}


def todo(place: Workplace) -> set[str]:
    run = place.snakemake("--dry-run")
    assert run.returncode == 0, run.stderr
    return steps(run)


def reasons(place: Workplace) -> list[str]:
    run = place.snakemake("--dry-run", "--logger-tightfit-why")
    assert run.returncode == 0, run.stderr
    return [line for line in run.stderr.splitlines() if line.startswith(("To do", "  "))]


def text_of(page: Path) -> str:
    """What a page says, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.read_text()).split())


@pytest.fixture(scope="module")
def finished(quick: Workplace) -> Workplace:
    """A pipeline of two processes, and one on devices that are not here and too small."""
    write_sources(quick.folder)
    describe_machines(quick.folder)
    point = quick.folder / "results/far/pipeline/one_f_one_b"
    point.mkdir(parents=True)
    (point / "measurement.json").write_text("of an earlier plan")
    quick.configure(configuration())
    run = quick.snakemake()
    assert run.returncode == 0, run.stderr
    return quick


@pytest.fixture
def place(finished: Workplace) -> Iterator[Workplace]:
    """The same, with configuration and machines as they were afterwards."""
    yield finished
    describe_machines(finished.folder)
    finished.configure(configuration())


@pytest.fixture
def copied(finished: Workplace, tmp_path: Path) -> Workplace:
    """A copy of it to damage."""
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    return replace(finished, folder=tmp_path / "copy")


def test_pages_table_and_index_show_what_ran_and_what_fits_nowhere(place: Workplace) -> None:
    results = place.folder / "results"
    point = results / "ran/pipeline/one_f_one_b"
    measured = read_pipeline_measurement(point / "measurement.json")
    assert [row.measured_peak for row in measured.ranks] == [
        row.predicted_peak for row in measured.ranks
    ]
    assert (point / "ranks/stage-2/schedule.arrow").exists()
    page = point / "report.html"
    assert page.read_text().count("<rect") > 8 and "As it ran" in text_of(page)
    assert json.loads((point / "trace.json").read_text())["traceEvents"]
    far = results / "far/pipeline/one_f_one_b"
    assert not (far / "measurement.json").exists()
    assert "Infeasible: The chain does not fit 2 devices of 100 bytes" in text_of(
        far / "report.html"
    )
    table = place.stage("summary", "--configuration", "config.yaml")
    assert table.returncode == 0, table.stderr
    assert re.search(r"ran +│ one_f_one_b │ +two │ fits ", table.stdout), table.stdout
    assert re.search(r"far +│ one_f_one_b │ +far │ infeasible ", table.stdout)
    assert str(Path("results/ran/pipeline/one_f_one_b/report.html")) in table.stdout
    index = (results / "index.html").read_text()
    assert 'href="ran/pipeline/one_f_one_b/report.html"' in index
    assert 'data-model="far" data-strategy="one_f_one_b" data-status="infeasible"' in index
    assert not (results / "ran/report.html").exists()


def test_an_infeasible_pipeline_ends_the_run_where_that_is_asked(place: Workplace) -> None:
    place.configure(configuration(fail_on=["infeasible"]))
    assert place.stage("summary", "--configuration", "config.yaml").returncode == 1
    place.configure(configuration({"ran": MODELS["ran"]}, fail_on=["infeasible"]))
    assert place.stage("summary", "--configuration", "config.yaml").returncode == 0


def test_the_results_stand_an_audit(place: Workplace) -> None:
    told = place.stage("audit", "results", "--configuration", "config.yaml")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "2 plans, 2 modules, 1 measurement," in told.stdout
    made = place.stage("lineage", "results/ran/pipeline/one_f_one_b/measurement.json")
    assert made.returncode == 0, made.stderr
    assert "says: strategy=one_f_one_b, machine=two, status=" in made.stdout
    for stage in ("trace", "profile", "partition", "combine", "generate", "validate"):
        assert f"made by: {stage}, code " in made.stdout


def test_a_pipeline_that_failed_is_told_by_audit_table_and_exit_code(copied: Workplace) -> None:
    path = copied.folder / "results/ran/pipeline/one_f_one_b/measurement.json"
    document = json.loads(path.read_text())
    document["ranks"][0]["measured_peak"] += 8
    path.write_text(json.dumps({**document, "status": "failed", "message": "It takes more."}))
    told = copied.stage("audit", "results", "--configuration", "config.yaml")
    assert told.returncode == 1
    assert f"{path.relative_to(copied.folder)}: the plan failed: It takes more." in told.stdout
    table = copied.stage("summary", "--configuration", "config.yaml")
    assert table.returncode == 1
    assert "ran one_f_one_b two: Failed: It takes more." in table.stdout
    copied.configure(configuration(fail_on=[]))
    assert copied.stage("summary", "--configuration", "config.yaml").returncode == 0
    path.write_text(json.dumps(document))
    told = copied.stage("audit", "results")
    assert "its status is " in told.stdout and "where 1 of its ranks are not" in told.stdout


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("ranks/stage-1/schedule.arrow", "stage-1/schedule.arrow: is missing"),
        ("ranks/pipeline.json", "pipeline.json: is gone, and the record of how it was made"),
        ("plan/pattern.arrow", "pattern.arrow: is gone"),
        ("plan", "plan/plan.json, is gone; run again"),
        ("ranks", "ranks/pipeline.json, is gone; run again"),
    ],
)
def test_a_file_that_is_missing_is_told(copied: Workplace, file: str, said: str) -> None:
    path = copied.folder / "results/ran/pipeline/one_f_one_b" / file
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    told = copied.stage("audit", "results")
    assert told.returncode == 1 and said in told.stdout


def test_a_damaged_pipeline_hides_nothing_else(copied: Workplace) -> None:
    place = copied.folder / "results/ran/pipeline/one_f_one_b"
    for file in (place / "ranks/pipeline.json", place / "measurement.json"):
        file.write_bytes(file.read_bytes()[:40])
    told = copied.stage("audit", "results")
    assert told.returncode == 1
    for name in ("ranks/pipeline.json", "measurement.json"):
        assert f"one_f_one_b/{name}: is not JSON" in told.stdout
    shown = copied.stage("lineage", "--json", "results/ran/pipeline/one_f_one_b/measurement.json")
    assert "is not JSON" in shown.stdout


def test_a_stage_of_another_split_is_told(copied: Workplace) -> None:
    ranks = copied.folder / "results/ran/pipeline/one_f_one_b/ranks"
    for name in ("graph.arrow", "schedule.arrow"):
        shutil.copy(ranks / "stage-2" / name, ranks / "stage-1" / name)
    told = copied.stage("audit", "results").stdout
    assert "stage-1: has another schedule.arrow than pipeline.json names" in told


def test_strategies_and_pipelines_that_left_the_configuration_are_removed(
    copied: Workplace,
) -> None:
    ran = {**MODELS["ran"], "pipeline": {**TWO, "strategies": ["madpipe"]}}
    copied.configure(configuration({"ran": ran}))
    told = copied.stage("prune")
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        "results/far: removed",
        "results/ran/pipeline/one_f_one_b: removed",
    ]


RANKS = "the ranks of one_f_one_b"
LOST = {
    "graph.arrow": "tracing the training step",
    "costs.arrow": "measuring each distinct op",
    "pipeline/one_f_one_b/ranks/stage-1/schedule.arrow": f"splitting the step over {RANKS}",
    "pipeline/one_f_one_b/module/stage_1.py": f"writing the programs of {RANKS}",
    "pipeline/one_f_one_b/trace.json": "writing the report of one_f_one_b",
}
"""Files of a finished run, and the step that makes each again."""


def steps_for(place: Workplace, lost: Collection[str]) -> set[str]:
    """The steps of the run that comes when files of the model are lost, named as the rules do."""
    model = place.folder / "results/ran"
    for file in lost:
        (model / file).unlink()
    told = place.plan("--dry-run")
    assert told.returncode == 0, told.stderr
    for file in lost:
        assert f"results/ran/{file}" in told.stdout
        assert not (model / file).exists()
    done = place.plan()
    assert done.returncode == 0, done.stderr
    return {step.removeprefix("ran: ") for step in steps(done) if step.startswith("ran: ")}


def test_what_was_lost_is_named_and_made_again_alone(copied: Workplace) -> None:
    alone = "costs.arrow"
    assert steps_for(copied, [alone]) == {LOST[alone]}
    checked = copied.stage("audit", "results", "--configuration", "config.yaml")
    assert checked.returncode == 0, checked.stdout
    assert copied.plan("--dry-run").stdout.startswith("Nothing to be done")


@pytest.mark.long
def test_all_that_was_lost_is_named_and_made_again(copied: Workplace) -> None:
    assert steps_for(copied, LOST) >= {*LOST.values()}
    checked = copied.stage("audit", "results", "--configuration", "config.yaml")
    assert checked.returncode == 0, checked.stdout
    assert copied.plan("--dry-run").stdout.startswith("Nothing to be done")


def test_a_measurement_that_was_lost_is_made_again(copied: Workplace) -> None:
    place = Path("results/ran/pipeline/one_f_one_b")
    (copied.folder / place / "measurement.json").unlink()
    assert "ran: running the ranks of one_f_one_b against one process" in todo(copied)
    (copied.folder / place / "measurement.json").write_text("{}")
    shutil.rmtree(copied.folder / place / "plan")
    told = " ".join(reasons(copied))
    lost = ", ".join(f"{place}/plan/{name}" for name in ("pattern.arrow", "sequence.arrow"))
    assert f"lost: {lost}, {place}/plan/plan.json; damaged: {place}/measurement.json" in told
    assert "new" not in told


REDONE = {
    f"ran: {what}"
    for what in (
        "allocating layers with one_f_one_b",
        "splitting the step over the ranks of one_f_one_b",
        "writing the programs of the ranks of one_f_one_b",
        "running the ranks of one_f_one_b against one process",
        "writing the report of one_f_one_b",
    )
} | {"writing the index"}


def test_a_changed_machine_redoes_no_trace(place: Workplace) -> None:
    assert todo(place) == set()
    machine(place.folder / "two.json", "cpu:0", "cpu:1", memory=2 * 10**6)
    assert todo(place) == REDONE
    assert reasons(place) == [
        "To do: 6 steps",
        "  ran, 5 steps: the description of its pipeline's machine was edited",
        "  the run, 1 step: its inputs are made again",
    ]


def test_other_settings_redo_what_they_are_of(place: Workplace) -> None:
    def changed(**settings: Any) -> set[str]:
        ran = {**MODELS["ran"], "pipeline": {**TWO, **settings}}
        place.configure(configuration({**MODELS, "ran": ran}))
        return todo(place)

    assert changed(microbatches=3) == REDONE
    assert changed(buffers=True) == REDONE
    more = changed(strategies=["one_f_one_b", "k_periodic"])
    assert more == {step.replace("one_f_one_b", "k_periodic") for step in REDONE}
    assert reasons(place) == [
        "To do: 6 steps",
        "  ran, 5 steps: the pipeline by k_periodic is new",
        "  the run, 1 step: its inputs are made again",
    ]


def test_a_factory_without_a_loss_is_told_by_the_stage_that_needs_it(copied: Workplace) -> None:
    """The run ends with exit code 1, and table and index say why."""
    models = {"lossless": {"factory": "mine:lossless", "pipeline": TWO}}
    copied.configure(configuration(models))
    run = copied.snakemake()
    assert run.returncode == 1
    said = "lossless: gives not one scalar for its backward to begin with"
    assert said in run.stderr
    table = copied.stage("summary", "--configuration", "config.yaml").stdout
    assert re.search(r"lossless +│ one_f_one_b │ +two │ failed ", table) and said in table
    assert said in text_of(copied.folder / "results/index.html")
    assert not (copied.folder / "results/lossless/report.html").exists()


def test_errors_of_a_pipeline_are_told_before_anything_runs(place: Workplace) -> None:
    wrong = {
        "machine": "none.json",
        "strategies": ["pipedream", "dualpipe"],
        "stage_recompute": "rotor",
    }
    place.configure(configuration({"ran": {"factory": "mine:tower", "pipeline": wrong}}))
    run = place.snakemake("--dry-run")
    assert run.returncode == 1 and "Traceback" not in run.stderr
    for sentence in (
        "has 3 errors",
        "models.ran.pipeline.machine: none.json: cannot be read",
        'models.ran.pipeline.strategies[1]: "dualpipe" was found, expected pipedream, ',
        'models.ran.pipeline.stage_recompute: "rotor" was found, which pipedream cannot take',
    ):
        assert sentence in run.stderr


@pytest.mark.long
def test_an_edited_layer_redoes_its_block_the_allocation_and_its_ranks(quick: Workplace) -> None:
    """Stages without it keep their files as they are."""
    place = replace(quick, folder=quick.checkout)
    write_sources(place.folder)
    machine(place.folder / "three.json", "cpu:0", "cpu:1", "cpu:2")
    pipeline = {
        "machine": "three.json",
        "strategies": ["one_f_one_b"],
        "stage_recompute": "rockmate",
    }
    models = {"edited": {"factory": "mine:tower", "pipeline": pipeline}}
    place.configure(configuration(models, device="rtx3060"))
    assert place.plan().returncode == 0
    ranks = place.folder / "results/edited/pipeline/one_f_one_b/ranks"
    before = {path: path.stat().st_mtime_ns for path in ranks.glob("stage-*/*.arrow")}
    text = MINE.replace("for _ in range(depth)]", "for _ in range(depth - 1)]")
    text = text.replace("    model =", "    activations.append(nn.Tanh())\n    model =")
    (place.folder / "mine.py").write_text(text)
    run = place.plan()
    assert run.returncode == 0, run.stderr
    assert re.findall(r"^\w+: solved \d+, \d+ from the store$", run.stderr, re.MULTILINE) == [
        "edited: solved 1, 2 from the store"
    ]
    changed = {
        path.parent.name for path, moment in before.items() if moment != path.stat().st_mtime_ns
    }
    assert changed == {"stage-3"}


@pytest.mark.long
def test_a_language_model_on_three_devices_by_all_that_is_asked(
    quick: Workplace, tmp_path: Path
) -> None:
    place = replace(quick, folder=tmp_path)
    sizes = {"layers": 4, "width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16}
    machine(place.folder / "three.json", "cpu:0", "cpu:1", "cpu:2", memory=3 * 10**6)
    pipeline = {
        "machine": "three.json", "strategies": ["pipedream", "one_f_one_b", "madpipe"],
        "microbatches": 4, "stage_recompute": "rockmate", "weight_copies": 2, "buffers": True,
    }  # fmt: skip
    model = {"factory": "data.models:gpt2_loss", "arguments": sizes, "pipeline": pipeline}
    place.configure(configuration({"gpt2-pipeline": model}, solver={"peaks": 2, "saves": 2}))
    run = place.snakemake()
    assert run.returncode == 0, run.stderr
    told = place.stage("audit", "results", "--configuration", "config.yaml")
    assert told.returncode == 0 and "3 measurements" in told.stdout, told.stdout
    table = place.stage("summary", "--configuration", "config.yaml").stdout
    assert len(re.findall(r"│ +three │ fits ", table)) == 3
