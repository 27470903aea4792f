"""Whole steps whose parameters live on disk, by hand: planned, written, run and compared."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tightfit.__main__ import main
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.measurement import Measurement, read_measurement
from tightfit.schemas.optimizer_plan import read_optimizer_costs, write_optimizer_costs
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import (
    SCHEDULE,
    read_schedule,
    schedule_link,
    schedule_optimizer_plan,
    write_schedule,
)
from tightfit.schemas.store import read
from tightfit.stages.audit.plan_checks import PlanFiles, check_plan_files
from tightfit.stages.generate.transfers import host_updated_parameters
from tightfit.stages.profile import measure
from tightfit.stages.torch_utils.model_factory import build_from_factory
from tightfit.stages.validate.load import load_offloaded_module, load_package, load_planned_module
from tightfit.stages.validate.offloaded_parameters import (
    PLAIN_OPTIMIZER_STEP,
    PLANNED_OPTIMIZER_STEP,
    build_optimizer,
    check_offloaded_step,
)
from tightfit.util.errors import ArtifactError

MODEL = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 60, "batch": 2, "tokens": 8}


pytestmark = pytest.mark.usefixtures("brief_search")


@pytest.fixture(scope="module")
def made(brief_search: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a plan that the command line made, and what names the model there."""
    folder = tmp_path_factory.mktemp("lodged")
    model = ["--factory", "data.models:gpt2", "--arguments", json.dumps(MODEL)]
    graph, costs = str(folder / "graph.arrow"), str(folder / "costs.arrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "TIMING_SECONDS", 0.0)
        patch.setattr(
            "tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1 << 10
        )
        patch.setenv("TIGHTFIT_DISK", str(folder))
        assert main(["trace", *model, "--name", "gpt2", "--out", graph]) == 0
        library = ["--library", str(folder / "store"), "--out", costs]
        assert main(["profile", "--graph", graph, *library, "--optimizer", "adamw"]) == 0
        machine = ["--disk", str(folder), "--size", "4MiB", "--out", str(folder / "machine.json")]
        assert main(["machine", *machine]) == 0
        whole = ["--graph", graph, "--costs", costs, "--machine", str(folder / "machine.json")]
        whole += ["--out", str(folder / "plan"), "--budget", "330kB"]
        assert main(["optimizer-offload", *whole, "--updates", str(folder / "updates.json")]) == 0
        plan = str(folder / "plan" / "plan.json")
        written = ["--schedule", str(folder / "plan" / "schedule.arrow"), "--plan", plan]
        module = str(folder / "module")
        assert main(["generate", "--graph", graph, *written, "--out", module]) == 0
    return folder, [*model, "--graph", graph, "--plan", plan, "--module", module]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))


def test_the_module_is_judged_to_the_byte(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, words = made
    out = str(tmp_path / "measurement.arrow")
    monkeypatch.setattr("tightfit.util.progress.PRINT_INTERVAL", 0.0)
    assert main(["validate", *words, "--out", out, "--pairs", "2"]) == 0
    found = read_measurement(out)
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"feasible: peak {found.measured_peak:,} bytes as predicted")
    assert "waits for the offload target for" in last
    told = {line.partition(" of 13 steps at most: ")[2] for line in lines}
    assert {
        "timing",
        PLAIN_OPTIMIZER_STEP,
        PLANNED_OPTIMIZER_STEP,
        f"the memory of {PLANNED_OPTIMIZER_STEP}",
    } <= told
    assert found.status == "feasible" and found.peak_as_predicted and found.within_budget
    assert found.bits_equal and found.pairs == 2
    assert "waits for the offload target for" in found.message


@pytest.mark.parametrize("what", ["plan", "graph"])
def test_a_module_is_judged_by_what_it_was_generated_from(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """What it takes would else be told as that of another plan, whose peak it never had."""
    folder, words = made
    other = tmp_path / what
    if what == "plan":
        plan = json.loads((folder / "plan" / "plan.json").read_text())
        other.write_text(json.dumps({**plan, "peak": plan["peak"] + 1}))
    else:
        model = ["--factory", "data.models:gpt2", "--arguments", json.dumps({**MODEL, "batch": 1})]
        assert main(["trace", *model, "--name", "gpt2", "--out", str(other)]) == 0
    capsys.readouterr()
    given = [*words, f"--{what}", str(other)]
    assert main(["validate", *given, "--out", str(tmp_path / "measurement.arrow")]) == 1
    told = f"was generated from another {what}, generate the module anew"
    assert capsys.readouterr().err.strip().endswith(told)
    assert not (tmp_path / "measurement.arrow").exists()


def test_what_is_wrong_with_a_step_is_told(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, words = made
    out = str(tmp_path / "measurement.arrow")
    package: Any = load_package(folder / "module")
    inside: Any = sys.modules[f"{package.__name__}.runtime.offload.piecewise_optimizer"]
    update = inside.PiecewiseOptimizer.update

    def wrong(self: Any, number: int, group: dict[str, Any], arriving: bool = False) -> None:
        update(self, number, {**group, "eps": 1e-7}, arriving)

    monkeypatch.setattr(inside.PiecewiseOptimizer, "update", wrong)
    assert main(["validate", *words, "--out", out, "--pairs", "0"]) == 1
    found = read_measurement(out)
    assert found.status == "failed" and not found.bits_equal
    assert found.message.startswith("In 3 steps of AdamW, an output of step 2 differs")


def test_a_package_is_loaded_as_what_it_is(made: Any) -> None:
    folder, _ = made
    module = folder / "module"
    model = build_from_factory("data.models:gpt2", MODEL).model
    with pytest.raises(ArtifactError, match="loaded with its optimizer"):
        load_planned_module(module, model)
    for optimizer, words in (
        (
            torch.optim.SGD(model.parameters(), lr=0.1),
            "was made for AdamW, and the optimizer is SG",
        ),
        (torch.optim.AdamW(model.parameters(), amsgrad=True), "plan again with its settings"),
        (torch.optim.AdamW(list(model.parameters())[:3]), "is in no group of the optimizer"),
    ):
        with pytest.raises(ArtifactError, match=words):
            load_offloaded_module(module, model, optimizer, None)
    other = build_from_factory("data.models:gpt2", {**MODEL, "layers": 1}).model
    with pytest.raises(ArtifactError, match="which this model has not"):
        load_offloaded_module(module, other, torch.optim.AdamW(other.parameters()), None)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ArtifactError, match="needs all parameters on the device"):
        load_offloaded_module(module, model, optimizer, None, on_mismatch="original")
    assert all(type(parameter) is torch.nn.Parameter for parameter in model.parameters())
    assert read_optimizer_costs(folder / "updates.json").optimizer == "AdamW"


def test_described_updates_are_not_run(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = made
    graph, costs = (
        ["--graph", str(folder / "graph.arrow")],
        ["--costs", str(folder / "costs.arrow")],
    )
    where = ["--machine", str(folder / "machine.json"), "--budget", "1MB"]
    assert main(["optimizer-offload", *graph, *costs, *where, "--out", str(tmp_path / "plan")]) == 1
    assert "cpu has no flops, so that no time is known" in capsys.readouterr().err
    updates = ["--updates", str(folder / "updates.json"), "--optimizer", "adamw"]
    assert (
        main(
            ["optimizer-offload", *graph, *costs, *where, *updates, "--out", str(tmp_path / "plan")]
        )
        == 1
    )
    assert "says of which optimizer it is" in capsys.readouterr().err
    machine = json.loads((folder / "machine.json").read_text())
    machine["devices"][0] |= {"flops": 1e12, "bandwidth": 1e10}
    (tmp_path / "described.json").write_text(json.dumps(machine))
    where[1] = str(tmp_path / "described.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1 << 10
        )
        assert (
            main(["optimizer-offload", *graph, *costs, *where, "--out", str(tmp_path / "plan")])
            == 0
        )
    plan = ["--plan", str(tmp_path / "plan" / "plan.json"), "--out", str(tmp_path / "module")]
    schedule = ["--schedule", str(tmp_path / "plan" / "schedule.arrow")]
    assert main(["generate", *graph, *schedule, *plan]) == 1
    assert "described updates, which say of no optimizer" in capsys.readouterr().err


def test_a_check_leaves_all_as_it_was(made: Any) -> None:
    folder, _ = made
    built = build_from_factory("data.models:gpt2", MODEL)
    graph, module = read_graph(folder / "graph.arrow"), folder / "module"
    before = [parameter.detach().clone() for parameter in built.model.parameters()]
    offload_plan: Any = load_package(module).OFFLOAD_PLAN
    state = torch.get_rng_state()
    said = check_offloaded_step(
        graph,
        built,
        lambda model, own: load_offloaded_module(module, model, own, None),
        build_optimizer(offload_plan, built.model),
    )
    assert said == "" and torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, before, built.model.parameters()))


@pytest.fixture(scope="module")
def away(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of two plans of updates of which those on the device are said to take long: of one
    microbatch and of three; and what names the graph."""
    folder, words = made
    own = tmp_path_factory.mktemp("away")
    known = read_optimizer_costs(folder / "updates.json")
    costs = {
        path: replace(cost, seconds=1.0, host_seconds=1e-6, add_seconds=1e-6)
        for path, cost in known.costs.items()
    }
    assert all(cost.host_seconds < 1 for cost in known.costs.values())
    write_optimizer_costs(own / "updates.json", replace(known, costs=costs, spare=True))
    graph = ["--graph", str(folder / "graph.arrow"), "--costs", str(folder / "costs.arrow")]
    given = [*graph, "--machine", str(folder / "machine.json"), "--budget", "420kB"]
    given += ["--updates", str(own / "updates.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1 << 10
        )
        assert (
            main(["optimizer-offload", *given, "--out", str(own / "plan"), "--microbatches", "3"])
            == 0
        )
    return own / "plan", folder / "plan", graph[:2], words[:-6]


def generated(plan: Path, graph: list[str], out: Path, *more: str) -> int:
    named = ["--plan", str(plan / "plan.json"), "--schedule", str(plan / "schedule.arrow")]
    return main(["generate", *graph, *named, "--out", str(out), *more])


@pytest.fixture(scope="module")
def parts(away: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module of a plan of three microbatches, the schedule of which is beside that of the last,
    and what judges it by so many timed pairs."""
    plan, _, graph, model = away
    module = tmp_path_factory.mktemp("parts") / "module"
    assert generated(plan, graph, module) == 0
    words = [*model, *graph, "--plan", str(plan / "plan.json"), "--module", str(module)]

    def judged(folder: Path, pairs: int = 0) -> Measurement:
        out = folder / "measurement.arrow"
        code = main(["validate", *words, "--out", str(out), "--pairs", str(pairs)])
        found = read_measurement(out)
        assert code == int(found.status == "failed")
        return found

    return load_package(module), judged


def test_updates_on_disk_are_judged_to_the_byte(parts: Any, tmp_path: Path) -> None:
    package, judged = parts
    offload_plan = package.OFFLOAD_PLAN
    assert len(offload_plan.host_updated) > 4 and offload_plan.microbatches == 3
    found = judged(tmp_path, 1)
    assert found.status == "feasible", found.message
    assert found.peak_as_predicted and found.within_budget and found.bits_equal
    assert found.offload_peak == found.predicted_offload_peak
    assert found.accumulate_peak == max(
        offload_plan.microbatch_peak, offload_plan.first_microbatch_peak
    )
    assert "measured, each of its 3 microbatches takes the bytes predicted; a st" in found.message
    assert "waits for the offload target for" in found.message


def test_other_bytes_of_a_microbatch_are_told(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step whose bits are those of the optimizer: these are compared elsewhere."""
    package, judged = parts
    said, lodge = package.OFFLOAD_PLAN, package.offload_parameters
    facts = ("first_microbatch_peak", "microbatch_peak", "peak", "first_peak", "gradient_sum_bytes")
    wrong = {fact: getattr(said, fact) + 64 for fact in facts}
    monkeypatch.setattr(
        "tightfit.stages.validate.offloaded_parameters.check_offloaded_step", lambda *_: ""
    )
    monkeypatch.setattr(
        package, "offload_parameters", lambda one, other, _, *disks: lodge(one, other, said, *disks)
    )
    monkeypatch.setattr(package, "OFFLOAD_PLAN", replace(said, **wrong))
    found = judged(tmp_path)
    assert found.status == "failed" and not found.peak_as_predicted
    told = re.sub(r"\d+ bytes where \d+ were predicted", "", found.message.lower())
    others = ["microbatch 1 takes", "microbatch 2 takes"] * 2
    steps = ["the first step takes", "a step takes", *others, "the offload target has "]
    assert told.rstrip(".").split(" ; ") == steps


def test_gradients_that_add_up_otherwise_are_told(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, judged = parts
    module: Any = sys.modules[f"{package.__name__}.runtime.offload.host_update"]
    add = module.UpdateWorkspace.add

    def forgetting(self: Any, number: int, gradient: int, earlier: int, first: bool) -> Any:
        return add(self, number, gradient, earlier, first=True)

    monkeypatch.setattr(module.UpdateWorkspace, "add", forgetting)
    found = judged(tmp_path)
    assert found.status == "failed" and not found.bits_equal and found.peak_as_predicted
    assert found.message.startswith("In 3 steps of AdamW, an output of step 2 differs")


def test_plans_of_microbatches_simulate_to_what_they_say(made: Any, away: Any) -> None:
    folder, _ = made
    for plan in away[:2]:
        files = PlanFiles(
            path=plan / "plan.json",
            plan=read_plan(plan / "plan.json"),
            graph=folder / "graph.arrow",
            costs=folder / "costs.arrow",
            frontier=None,
            given=None,
            rival=None,
            schedule=plan / "schedule.arrow",
            sequence=None,
            streams=None,
            module=None,
            measurement=None,
        )
        assert [*check_plan_files(files)] == []
        wrong = replace(files, plan=replace(files.plan, time=1.0))
        assert any("time is 1.0, where" in each for each in check_plan_files(wrong))


def test_schedules_of_microbatches_that_do_not_belong_together_are_refused(
    away: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, single, graph, _ = away
    out, adding = tmp_path / "module", plan / "microbatch.arrow"

    def refused(words: str, of: Path, *more: str) -> None:
        assert generated(of, graph, out, *more) == 1
        assert words in capsys.readouterr().err and not out.exists()

    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("plan.json", "schedule.arrow"):
        shutil.copy(plan / name, alone)
    refused("give that of the others, too (`tightfit generate --microbatch`)", alone)
    refused("is not that of several microbatches", single, "--microbatch", str(adding))
    last = str(plan / "schedule.arrow")
    refused("of the other microbatches", plan, "--microbatch", last)
    updates, link = schedule_optimizer_plan(adding), schedule_link(adding)
    digest = read(adding, SCHEDULE).metadata["graph"]
    steps = read_schedule(adding)
    assert updates is not None and host_updated_parameters(steps)
    for changed in (replace(updates, resident=frozenset()), replace(updates, microbatches=4)):
        path = tmp_path / "other.arrow"
        write_schedule(path, steps, digest, link, changed)
        refused("is that of another step", plan, "--microbatch", str(path))


def test_updates_of_the_past_have_no_lane(made: Any, tmp_path: Path) -> None:
    """A file that says nothing of the offload target is read as one where nothing computes."""
    folder, _ = made
    document = json.loads((folder / "updates.json").read_text())
    found = json.loads(document["updates"])
    for cost in found["costs"]:
        cost |= {"host_seconds": None, "add_seconds": None}
        del cost["host_peak"]
    document["updates"] = json.dumps(found)
    (tmp_path / "updates.json").write_text(json.dumps(document))
    costs = read_optimizer_costs(tmp_path / "updates.json").costs.values()
    assert all(cost.host_seconds == float("inf") for cost in costs)
