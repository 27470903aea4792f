"""What no whole step is planned of, by the command line: exit code 1 and one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.optimizer_offload.test_search import GRAPH, files, machine
from tightfit.__main__ import main
from tightfit.schemas.optimizer_plan import (
    OptimizerCosts,
    ParameterUpdateCost,
    write_optimizer_costs,
)
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import schedule_optimizer_plan
from tightfit.stages.runtime.offload.piecewise_optimizer import KNOWN_OPTIMIZERS

__all__ = ["files"]

OWNERS = [gradient.value for gradient in GRAPH.gradients]


@pytest.fixture
def given(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1)
    words = {"graph": files / "graph.arrow", "costs": files / "costs.arrow", "out": tmp_path}
    return [
        "optimizer-offload",
        *(word for name, path in words.items() for word in (f"--{name}", str(path))),
    ]


def updates(folder: Path, optimizer: str, change: Callable[[list[Any]], None]) -> Path:
    """Measured updates whose rows were changed by hand."""
    path = folder / "updates.json"
    costs = {
        GRAPH.values[value].path: ParameterUpdateCost(
            GRAPH.values[value].path, (64,), 1e-3, 8, 0, (8, 0)
        )
        for value in OWNERS
    }
    write_optimizer_costs(path, OptimizerCosts(optimizer, 1 << 20, costs))
    document = json.loads(path.read_text())
    own = json.loads(document["updates"])
    change(own["costs"])
    path.write_text(json.dumps({**document, "updates": json.dumps(own)}))
    return path


@pytest.mark.parametrize(
    ("words", "memory", "link", "more"),
    [
        ("between cpu and host has no bandwidth", {}, {"bandwidth": 0}, "6MB"),
        ("above 100%", {}, {}, "101%"),
        ("--budget: '-5%' is no size", {}, {}, "-5%"),
        ("--budget: '-.5GiB' is no size", {}, {}, "-.5GiB"),
        ("expected a size such as", {}, {}, "least"),
    ],
)
def test_machines_and_budgets(
    words: str,
    memory: dict[str, float],
    link: dict[str, float],
    more: str,
    given: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = machine(tmp_path, **memory)
    document = json.loads(path.read_text())
    document["links"][0].update(link)
    path.write_text(json.dumps(document))
    assert main([*given, "--machine", str(path), "--budget", more]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and re.search(words, said), said
    assert not (tmp_path / "plan.json").exists()


def test_a_described_device_has_no_host_by_itself(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, "--machine", "h100", "--budget", "6MB"]) == 1
    said = capsys.readouterr().err
    assert "machines/h100.json: names no memory 'host'" in said and '"between": ["cuda:0"' in said


def test_optimizers(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given += ["--machine", str(machine(tmp_path)), "--budget", "9MB"]
    with pytest.raises(SystemExit):
        main([*given, "--optimizer", "lamb"])
    assert "'lamb' (choose from 'sgd', 'momentum', 'adam', 'adamw')" in capsys.readouterr().err
    twice = GRAPH.values[OWNERS[0]].path
    for optimizer, change, words in (
        ("Lamb", lambda rows: None, "'Lamb' is no optimizer that is known: SGD, Adam, AdamW"),
        ("AdamW", lambda rows: rows[1].update(path=twice), f"{twice!r} is updated twice"),
        ("AdamW", lambda rows: rows[0].update(net=-(10**9)), "what it says of an optimizer is no"),
        ("AdamW", lambda rows: rows[0].update(peak=10**30), "what it says of an optimizer is none"),
        ("AdamW", lambda rows: rows[0].update(seconds=1e300), "it says of an optimizer is none"),
        ("AdamW", lambda rows: rows.pop(0), f"{twice} has a gradient, and is not among the param"),
    ):
        path = updates(tmp_path, optimizer, change)
        assert main([*given, "--updates", str(path)]) == 1
        assert words in capsys.readouterr().err
    assert {kind.__name__ for kind in KNOWN_OPTIMIZERS} == {"SGD", "Adam", "AdamW"}


def test_a_share_and_the_least_are_budgets(given: list[str], tmp_path: Path) -> None:
    given += ["--machine", str(machine(tmp_path))]
    plans = []
    for budget in ("min", "60%", "100%"):
        assert main([*given, "--budget", budget]) == 0
        plans.append(read_plan(tmp_path / "plan.json"))
    totals = [plan.budget_total or 0 for plan in plans]
    assert totals == sorted(totals) and totals[2] == plans[2].keep_all_total
    assert plans[0].time >= plans[1].time >= plans[2].time  # type: ignore[operator]
    assert main([*given, "--budget", str(totals[0] + 1000)]) == 0
    assert main([*given, "--budget", str(totals[0] * 9 // 10)]) == 0
    less = read_plan(tmp_path / "plan.json")
    assert less.status == "infeasible" and less.smallest_budget in (None, totals[0])


def test_a_budget_below_what_an_op_needs_is_a_verdict(given: list[str], tmp_path: Path) -> None:
    assert main([*given, "--machine", str(machine(tmp_path)), "--budget", "3MB"]) == 0
    plan = read_plan(tmp_path / "plan.json")
    assert plan.status == "infeasible" and plan.budget_total == 3_000_000
    assert re.search(r"fits in 3,000,000 bytes: aten\S+ of h\.\d\S* needs \S+ with", plan.message)


def test_measured_updates_of_small_parameters_are_refused(
    given: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a plan would offload nothing, and no package runs it with its optimizer."""
    monkeypatch.setattr(
        "tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1 << 40
    )
    given += ["--machine", str(machine(tmp_path)), "--budget", "9MB"]
    path = updates(tmp_path, "AdamW", lambda rows: None)
    assert main([*given, "--updates", str(path)]) == 1
    said = capsys.readouterr().err
    assert "no parameter that can be offloaded has 1,099,511,627,776 bytes or more" in said
    assert not (tmp_path / "plan.json").exists()
    assert main(given) == 0


def test_settings_of_described_optimizers_add_states(given: list[str], tmp_path: Path) -> None:
    given += ["--machine", str(machine(tmp_path)), "--budget", "min"]
    sizes = []
    for optimizer, settings in (
        ("sgd", {}),
        ("sgd", {"momentum": 0.9}),
        ("adam", {}),
        ("adam", {"amsgrad": True}),
    ):
        words = ["--optimizer", optimizer, "--optimizer-settings", json.dumps(settings)]
        assert main([*given, *words]) == 0
        plan = schedule_optimizer_plan(tmp_path / "schedule.arrow")
        assert plan is not None
        sizes.append(sum(cost.states for cost in plan.costs.values()))
    assert sizes == [number * sizes[1] for number in range(4)] and sizes[1] > 0
