"""The workflow from configuration to reports, run for real on a tiny model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import BINARIES, Workplace
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.plan import read_plan

FACTORIES = '''
import torch


def broken(width=1):
    raise ValueError("no such luck")


class Tower(torch.nn.Module):
    """Layers that call an operator which is not PyTorch's own."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.ops.mine.scaled(torch.nn.functional.gelu(layer(x)), 0.5).tanh()
        return x


def tower():
    return Tower().train(), ((torch.randn(256, 32),), {})
'''

SETTLED: dict[str, Any] = {
    "tiny": {"factory": "mine:tower", "budgets": ["50%"], "strategies": ["keep_all", "rockmate"]}
}

OPERATORS = Path(__file__).parents[1] / "stages/torch_utils/custom_ops.py"

Finished = tuple[Workplace, subprocess.CompletedProcess[str]]


def configuration(models: dict[str, Any]) -> dict[str, Any]:
    settings = {"solver": {"peaks": 2, "saves": 2}, "pairs": 2, "disk": "nowhere"}
    return {"models": models, "operators": {"mine": "mine_operators"}, **settings}


@pytest.fixture(scope="module")
def finished(quick: Workplace) -> Finished:
    """A run of a model that calls operators which are not PyTorch's own, with a budget that is too
    small and a strategy whose disk is not there, and of one whose factory raises."""
    (quick.folder / "mine.py").write_text(FACTORIES)
    shutil.copy2(OPERATORS, quick.folder / "mine_operators.py")
    models = {
        "tiny": {
            "factory": "mine:tower",
            "budgets": ["50%", "1kB"],
            "strategies": ["keep_all", "rockmate", "offload"],
        },
        "broken": {"factory": "mine:broken", "strategies": ["keep_all"]},
    }
    quick.configure(configuration(models))
    return quick, quick.snakemake()


@pytest.fixture(scope="module")
def table(finished: Finished) -> str:
    """What `make plan` shows at its end."""
    result = finished[0].stage("summary", "--configuration", "config.yaml")
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_broken_factory_is_a_sentence_with_its_line_and_stops_no_other_model(
    finished: Finished,
) -> None:
    folder, result = finished[0].folder, finished[1]
    assert result.returncode == 1
    sentence = (
        "the factory 'mine:broken' raises ValueError: no such luck (mine.py, line 6, in broken)"
    )
    assert f"tightfit trace: {sentence}" in result.stderr
    assert "Traceback" not in result.stderr
    log = (folder / "results/broken/logs/trace.txt").read_text()
    assert log.startswith(f"trace: {sentence}\n\n  File ") and "in broken\n    raise Val" in log
    assert (folder / "results/tiny/report.html").exists()
    assert sentence in (folder / "results/index.html").read_text().replace("&#39;", "'")


def test_a_strategy_that_failed_is_a_row_and_stops_no_page(finished: Finished, table: str) -> None:
    """What plans with a link wait for belongs to no model: the measurement of that link."""
    folder = finished[0].folder / "results"
    said = f"disk: tensors cannot wait in files of {finished[0].folder}/nowhere (No such file"
    for page in ("index.html", "tiny/report.html"):
        assert said in (folder / page).read_text()
    rows = re.findall(
        r'<tr data-model="tiny" data-strategy="offload" data-status="(\w+)".*?</tr>',
        (folder / "index.html").read_text(),
        re.DOTALL,
    )
    assert rows == ["failed", "failed"]
    links = re.findall(r'href="([^"#]+)', (folder / "index.html").read_text())
    assert len(set(links)) == 2 and all((folder / link).exists() for link in links)
    [told] = [line for line in table.splitlines() if line.startswith("tiny offload 50%, ")]
    assert told.startswith(f"tiny offload 50%, tiny offload 1kB: machine: {said}")
    assert told.endswith("(see results/logs/link_cpu.txt)")


def test_the_end_names_the_steps_that_failed_and_their_logs(finished: Finished) -> None:
    lines = finished[1].stderr.splitlines()
    assert sorted(line for line in lines if line.startswith("Failed")) == [
        "Failed: broken: tracing the training step (results/broken/logs/trace.txt says why)",
        "Failed: measuring the link of cpu to its offload target"
        " (results/logs/link_cpu.txt says why)",
    ]
    assert lines[-1].startswith("Failed") and "WorkflowError" not in finished[1].stderr


def test_progress_is_told_in_the_words_of_the_rules(finished: Finished) -> None:
    lines = finished[1].stderr.splitlines()
    assert any(line.endswith("] tiny: tracing the training step") for line in lines)
    assert any(line.endswith("] tiny: choosing rockmate for 50%") for line in lines)


def test_a_plan_within_its_budget_is_as_predicted(finished: Finished) -> None:
    point = finished[0].folder / "results/tiny/rockmate/50pct"
    plan, found = read_plan(point / "plan.json"), read_measurement(point / "measurement.arrow")
    assert plan.feasible
    assert found.bits_equal
    assert found.within_budget
    assert found.measured_peak == plan.peak
    assert {"__init__.py", "step.py"} <= {path.name for path in (point / "module").iterdir()}
    assert 'custom_operator("mine.scaled.default")' in (point / "module/step.py").read_text()


def test_a_budget_that_is_too_small_is_a_status_and_stops_no_other_point(
    finished: Finished,
) -> None:
    point = finished[0].folder / "results/tiny/rockmate/1kB"
    plan = read_plan(point / "plan.json")
    assert plan.status == "infeasible"
    assert plan.smallest_budget is not None
    assert plan.smallest_budget > 1000
    assert read_measurement(point / "measurement.arrow").status == "infeasible"


def test_every_point_has_a_trace_for_perfetto(finished: Finished) -> None:
    for point in ("keep_all/none", "rockmate/50pct"):
        document = json.loads((finished[0].folder / f"results/tiny/{point}/trace.json").read_text())
        assert document["traceEvents"]


def test_the_table_tells_every_plan_and_every_failure(table: str) -> None:
    rows = [line for line in table.splitlines() if "rockmate" in line]
    assert any("50%" in row and "kB" in row for row in rows)
    assert any("1kB" in row and "infeasible" in row for row in rows)
    assert "results/tiny/report.html" in table
    assert "no such luck" in table


def test_a_failure_is_not_forgotten(finished: Finished) -> None:
    result = finished[0].snakemake("--dry-run")
    assert result.returncode == 0, result.stderr
    assert jobs(result) == {
        "broken: tracing the training step",
        "broken: measuring each distinct op",
        "broken: cutting the graph into blocks",
        "broken: finding the options of each distinct block",
        "broken: planning with keep_all",
        "broken: choosing keep_all",
        "broken: writing the module of keep_all",
        "broken: writing the trace of keep_all",
        "broken: running the model",
        "broken: running keep_all against the model",
        "broken: writing the report",
        "measuring the link of cpu to its offload target",
        "tiny: planning with offload",
        "tiny: planning with offload for all budgets",
        *(f"tiny: choosing offload for {budget}" for budget in ("50%", "1kB")),
        *(f"tiny: writing the module of offload {budget}" for budget in ("50pct", "1kB")),
        *(f"tiny: running offload {budget} against the model" for budget in ("50pct", "1kB")),
        *(f"tiny: writing the trace of offload {budget}" for budget in ("50pct", "1kB")),
        "tiny: writing the report",
        "writing the index",
    }


def jobs(result: subprocess.CompletedProcess[str]) -> set[str]:
    """What a run did or would do, in the words of the rules."""
    return {line.partition("] ")[2] for line in result.stderr.splitlines() if line[:1] == "["}


@pytest.fixture(scope="module")
def done(finished: Finished) -> Workplace:
    """A run of one model and one budget in which nothing is left to do."""
    workplace = finished[0]
    workplace.configure(configuration(SETTLED))
    result = workplace.snakemake()
    assert result.returncode == 0, result.stderr
    return workplace


@pytest.fixture
def settled(done: Workplace) -> Workplace:
    """That run as it was configured."""
    done.configure(configuration(SETTLED))
    return done


def test_the_second_run_does_nothing_and_the_next_budget_little(
    settled: Workplace,
) -> None:
    again = settled.snakemake()
    assert again.returncode == 0
    assert "Nothing to be done" in again.stderr
    assert not jobs(again)
    more = {"tiny": {**SETTLED["tiny"], "budgets": ["50%", "80%"]}}
    settled.configure(configuration(more))
    assert jobs(settled.snakemake("--dry-run")) == {
        "tiny: choosing rockmate for 80%",
        "tiny: writing the module of rockmate 80pct",
        "tiny: running rockmate 80pct against the model",
        "tiny: writing the trace of rockmate 80pct",
        "tiny: writing the report",
        "writing the index",
    }


def test_an_edit_of_the_code_redoes_what_follows_and_a_comment_nothing(
    settled: Workplace,
) -> None:
    checkout = settled.checkout
    edited = [settled.folder / "mine.py", checkout / "stages/solve/command.py"]
    for file in (*edited, checkout / "schemas/store.py"):
        file.write_text("# a comment\n" + file.read_text())
    assert "Nothing to be done" in settled.snakemake("--dry-run").stderr
    code = checkout / "stages/generate/command.py"
    before = code.read_text()
    code.write_text(f"{before}\nCHANGED = True\n")
    result = settled.snakemake("--dry-run")
    code.write_text(before)
    assert jobs(result) == {
        "tiny: writing the module of rockmate 50pct",
        "tiny: writing the module of keep_all",
        "tiny: running rockmate 50pct against the model",
        "tiny: running keep_all against the model",
        "tiny: writing the trace of rockmate 50pct",
        "tiny: writing the trace of keep_all",
        "tiny: writing the report",
        "writing the index",
    }


def test_every_file_is_whole_under_its_own_name(finished: Finished) -> None:
    names = [path.name for path in (finished[0].folder / "results").rglob("*") if path.is_file()]
    assert {name for name in names if name.startswith(".")} <= {".snakemake_timestamp"}


@pytest.mark.long
def test_no_job_that_plans_or_reports_loads_torch(settled: Workplace) -> None:
    settled = replace(settled, programs=BINARIES)
    rules = ["partition", "solve", "own_plans", "frontier", "select", "perfetto", "report", "index"]
    shutil.rmtree(settled.folder / "store/options")
    seen = settled.folder / "seen"
    there = settled.checkout / "torch.py"
    there.write_text(f"open({str(seen)!r}, 'a').close()\nraise ImportError('no PyTorch here')\n")
    try:
        result = settled.snakemake("--forcerun", *rules, "--allowed-rules", *rules)
        assert not seen.exists()
        traced = ["--factory", "data.models:gpt2", "--name", "tiny", "--out", "graph.arrow"]
        assert settled.stage("trace", *traced).returncode != 0
        assert seen.exists()
    finally:
        there.unlink()
    assert result.returncode == 0, result.stderr
    assert len(jobs(result)) == 11
    assert any((settled.folder / "store/options").iterdir())
