"""What a planned module sends to a disk: counted as it runs, and held to what its plan says."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.generate.plans import PLAN, traced
from tests.stages.runtime.offload.test_transfers import LINK, leaves
from tests.stages.trace import modules
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import FAILED_STATUS
from tightfit.schemas.plan import TransferTotals
from tightfit.stages.generate.package import build_package, write_directory, zero_time_costs
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.validate.load import load_planned_module
from tightfit.stages.validate.predictions import predicted_transfers
from tightfit.stages.validate.transfer_check import check_transfers
from tightfit.stages.validate.validate import validate
from tightfit.util.errors import ArtifactError


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Graph, BuiltModel, dict[str, Any], Path]:
    """A graph with its model, a plan that sends, and the folder of its module."""
    torch.manual_seed(0)
    graph, built = traced(modules.shared(), "shared")
    costs = zero_time_costs(graph)
    found = simulate(graph, costs, leaves(graph, costs, 2, 1.0), link=LINK)
    folder = tmp_path_factory.mktemp("sent") / "module"
    assert found.transfers is not None and found.transfers.offloaded_bytes > 0
    plan = {**PLAN, "peak": found.peak, "budget_bytes": None, "gap": None, "time": 0.5}
    plan |= {"transfers": asdict(replace(found.transfers, wait_seconds=0.25))}
    write_directory(folder, build_package(graph, found.steps, plan))
    return graph, built, plan, folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))


def moved(plan: dict[str, Any]) -> TransferTotals:
    return TransferTotals(**plan["transfers"])


def test_bytes_and_waits_are_those_of_the_run(made: Any) -> None:
    graph, built, plan, folder = made
    found = validate(graph, built, plan, folder, pairs=2)
    measured, said = found.measurement, moved(plan)
    assert (measured.offload_target, measured.offload_peak) == ("disk", said.host_peak)
    assert (
        measured.predicted_offload_peak == said.host_peak
        and measured.predicted_wait_seconds == 0.25
    )
    assert measured.wait_seconds is not None and measured.measured_time is not None
    assert 0 < measured.wait_seconds < measured.measured_time
    assert f"has {said.host_peak:,} bytes in the disk at most, as predicted, and waits for" in (
        measured.message
    )
    assert "where 250.0 ms were predicted" in measured.message
    lines = {
        run: [p for p in found.line if p.run == run] for run in ("offloaded", "offload", "wait")
    }
    assert max(point.live for point in lines["offloaded"]) == said.host_peak
    assert (
        lines["offloaded"][-1].live == 0
        and sum(p.live for p in lines["offload"]) == said.offloaded_bytes
    )
    assert all(point.live >= 0 for point in found.line if point.run != "planned")
    waited = sum(b.seconds - a.seconds for a, b in zip(*[iter(lines["wait"])] * 2, strict=True))
    assert waited < measured.measured_time * 10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host_peak": 8}, "bytes where 8 were predicted"),
        ({"offloaded_bytes": 8}, "a step sends to the disk"),
        ({"prefetched_bytes": 8}, "a step brings back from the disk"),
    ],
)
def test_other_bytes_than_predicted_are_told(made: Any, changes: dict[str, int], said: str) -> None:
    graph, built, plan, folder = made
    planned = load_planned_module(folder, built.model)
    other = {**plan, "transfers": plan["transfers"] | changes}
    assert said in check_transfers(graph, built, planned, moved(other))[0]
    wrong, words = check_transfers(graph, built, planned, moved(plan))
    assert not wrong and f"has {moved(plan).host_peak:,} bytes in the disk" in words


def test_a_module_that_sends_what_no_plan_says_fails(made: Any) -> None:
    graph, built, plan, folder = made
    found = validate(graph, built, {**plan, "transfers": None}, folder, pairs=0).measurement
    assert found.status == FAILED_STATUS and "bytes where 0 were predicted" in found.message
    assert (found.predicted_offload_peak, found.offload_peak) == (0, moved(plan).host_peak)


@pytest.mark.parametrize(
    "transfers",
    [
        {"offloaded_bytes": 1},
        [],
        {"offloaded_bytes": 1, "prefetched_bytes": 1, "host_peak": 1.5, "wait_seconds": 0.0},
        {"offloaded_bytes": 1, "prefetched_bytes": 1, "host_peak": 1, "wait_seconds": "long"},
        {"offloaded_bytes": 1, "prefetched_bytes": 1, "host_peak": 10**30, "wait_seconds": 0.0},
        {"offloaded_bytes": -1, "prefetched_bytes": 1, "host_peak": 1, "wait_seconds": 0.0},
        {"offloaded_bytes": 1, "prefetched_bytes": 1, "host_peak": True, "wait_seconds": 0.0},
        {"offloaded_bytes": 1, "prefetched_bytes": 1, "host_peak": 1, "wait_seconds": 10**400},
    ],
)
def test_a_plan_that_does_not_say_what_it_sends(transfers: Any) -> None:
    with pytest.raises(ArtifactError, match="the plan does not say what it sends"):
        predicted_transfers({"transfers": transfers})


def test_the_folder_is_the_one_that_load_is_given(made: Any, tmp_path: Path) -> None:
    _, built, _, folder = made
    other = tmp_path / "other"
    other.mkdir()
    planned = load_planned_module(folder, built.model, disk=str(other))
    for module in (planned, copy.deepcopy(planned)):
        sending: Any = module._tightfit_transfers
        assert sending.folder == str(other)
