"""A pipeline from a factory to a report, by the commands of docs/pipelines.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.multiprocessing

from tests.stages.validate.pipelines import lonely, machine
from tightfit.__main__ import main
from tightfit.api.pipeline_parallel import load_pipeline
from tightfit.schemas.pipeline import read_pipeline
from tightfit.schemas.pipeline_measurement import read_pipeline_measurement
from tightfit.schemas.pipeline_plan import read_pipeline_plan
from tightfit.stages.audit.audit import audit
from tightfit.stages.generate.package import write_directory
from tightfit.stages.validate.load import load_package
from tightfit.stages.validate.pipeline import ModelSource, RankJob, _run_ranks
from tightfit.util.errors import ArtifactError, ModelError


def commands(
    folder: Path,
    memory: int,
    microbatches: int = 3,
    model: str = "words",
    how: str = "pipeline_ilp",
) -> dict[str, list[str]]:
    """The words of each command, all files in one folder."""
    factory = ("--factory", f"tests.stages.validate.pipelines:{model}")
    machine(folder / "machine.json", 2, memory)
    graph = ["--graph", str(folder / "graph.arrow")]
    costs = ["--costs", str(folder / "costs.arrow")]
    blocks, chain = str(folder / "blocks.arrow"), str(folder / "chain.arrow")
    plan, ranks, module = (str(folder / name) for name in ("plan", "ranks", "module"))
    planned = ["--plan", f"{plan}/plan.json"]
    measured = ["--measurement", str(folder / "measurement.json")]
    return {
        "trace": [*factory, "--name", "words", "--out", graph[1]],
        "profile": [*graph, *factory, "--library", str(folder / "store"), "--out", costs[1]],
        "partition": [*graph, *costs, "--out", blocks, "--chain", chain],
        "chain": [
            *("--chain", chain, "--machine", str(folder / "machine.json")),
            *("--strategy", how, "--weight-copies", "2", "--out", plan),
        ],
        "pipeline": [
            *(*graph, *costs, "--blocks", blocks, "--plan", plan),
            *("--microbatches", str(microbatches), "--out", ranks),
        ],
        "generate": [*graph, "--pipeline", ranks, *planned, "--out", module],
        "validate": [
            *(*graph, "--pipeline", ranks, *planned, "--module", module, *factory),
            *("--out", measured[1]),
        ],
        "report": [
            *("--pipeline", ranks, "--plan", plan, *measured),
            *("--out", str(folder / "report.html"), "--trace", str(folder / "trace.json")),
        ],
    }


@pytest.mark.long
def test_from_a_factory_to_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ranks are processes of their own, held to one process and to the bytes."""
    torch.set_num_threads(1)
    for command, words in commands(tmp_path, 50_000).items():
        assert main([command, *words]) == 0, command
    assert "2 ranks compute what one process does, bit for bit" in capsys.readouterr().out
    pipeline = read_pipeline(tmp_path / "ranks" / "pipeline.json")
    measured = read_pipeline_measurement(tmp_path / "measurement.json")
    assert [row.measured_peak for row in measured.ranks] == pipeline.peaks
    assert all(row.within_budget and row.gradient_difference == 0.0 for row in measured.ranks)
    found = audit(tmp_path)
    assert not found.complaints and found.infeasible == 1
    page = (tmp_path / "report.html").read_text()
    assert page.count("<rect") > 2 * len(pipeline.stages) * 3 and "As it ran" in page
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    _lose_a_rank(tmp_path)
    _bad_input(tmp_path, capsys)


def test_a_rank_whose_peak_is_that_of_the_loss(tmp_path: Path) -> None:
    """Whether a loss draws random numbers is found out without a byte, as the simulator has it."""
    torch.set_num_threads(1)
    for command, words in commands(tmp_path, 10**7, 1, "losing", "one_f_one_b").items():
        assert main([command, *words]) == 0, command
    pipeline = read_pipeline(tmp_path / "ranks" / "pipeline.json")
    measured = read_pipeline_measurement(tmp_path / "measurement.json")
    assert [row.measured_peak for row in measured.ranks] == pipeline.peaks
    last = pipeline.actions[-1]
    assert max(last, key=lambda action: action.peak).kind == "loss"


def test_a_loss_whose_gradient_repeats_one_number(tmp_path: Path) -> None:
    """The last rank takes it as one process does: the same bits, in the bytes that it has."""
    torch.set_num_threads(1)
    for command, words in commands(tmp_path, 10**7, 2, "summing", "pipedream").items():
        assert main([command, *words]) == 0, command
    pipeline = read_pipeline(tmp_path / "ranks" / "pipeline.json")
    measured = read_pipeline_measurement(tmp_path / "measurement.json")
    assert len(measured.ranks) == 2 and measured.status != "failed", measured.message
    assert [row.measured_peak for row in measured.ranks] == pipeline.peaks
    assert re.search(r"a step takes [0-9.]+ \w+, one process [0-9.]+ \w+( \(|$)", measured.message)


CHAIN_OF_ERRORS = """
import atexit, time
import torch

class Pipeline:
    interface = None

    def step(self, calls, loss, outputs=None):
        if torch.distributed.get_rank() == 1:
            atexit.register(time.sleep, 3)
            raise ValueError("layer 7 is broken\\nand more")
        torch.distributed.recv(torch.empty(1), 1)

def load_pipeline(model, rank):
    return Pipeline()
"""
"""A package of which rank 1 fails, and ends long after rank 0, which loses it."""


def test_the_rank_that_failed_first_is_named(tmp_path: Path) -> None:
    module = tmp_path / "module"
    write_directory(module, {"__init__.py": CHAIN_OF_ERRORS.encode()})
    torch.save(([], {}), tmp_path / "reference.pt")
    source = ModelSource("tests.stages.validate.pipelines:summing", {}, ())
    job = RankJob(source, str(module), str(tmp_path), 0, 1, 1)
    ranks: Any = SimpleNamespace(ranks=2)
    with pytest.raises(ModelError) as caught:
        _run_ranks(job, ranks)
    assert str(caught.value) == "rank 1 of the pipeline ended: ValueError: layer 7 is broken"


def _lose_a_rank(folder: Path) -> None:
    """A rank that ends ends the other one with a sentence."""
    started = torch.multiprocessing.start_processes(
        lonely, (str(folder / "module"), str(folder)), nprocs=2, join=False, start_method="spawn"
    )
    for process in started.processes:
        process.join(60)
    assert [process.exitcode for process in started.processes] == [0, 3]
    said = (folder / "said").read_text()
    assert said.startswith("rank 0 of the pipeline has lost rank 1, which has ended")


def _bad_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = commands(folder, 50_000)

    def refused(command: str, **changed: str) -> str:
        line = list(words[command])
        for name, value in changed.items():
            line[line.index(f"--{name}") + 1] = value
        capsys.readouterr()
        assert main([command, *line]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    assert "expected 1 to 4096" in refused("pipeline", microbatches="0")


def test_an_infeasible_plan_goes_through_all_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that of a budget does: the package, the measurement and the page say what it is."""
    for command, words in commands(tmp_path, 20, how="one_f_one_b").items():
        assert main([command, *words]) == 0, command
    assert "the plan is infeasible, so that no rank has anything to run" in capsys.readouterr().out
    plan = read_pipeline_plan(tmp_path / "plan" / "plan.json")
    assert plan.status == "infeasible" and plan.message.startswith("The chain does not fit")
    assert not read_pipeline(tmp_path / "ranks" / "pipeline.json").feasible
    with pytest.raises(RuntimeError, match="The chain does not fit"):
        load_package(tmp_path / "module").load_pipeline(None)
    with pytest.raises(ArtifactError, match="module: this folder has no plan: The chain does not"):
        load_pipeline(tmp_path / "module", torch.nn.Linear(1, 1))
    measured = read_pipeline_measurement(tmp_path / "measurement.json")
    assert (measured.status, measured.message) == (plan.status, plan.message)
    page = (tmp_path / "report.html").read_text()
    assert f"Infeasible: {plan.message}" in page and "<rect" not in page
    assert not audit(tmp_path).complaints
