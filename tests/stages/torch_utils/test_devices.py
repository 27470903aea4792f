"""One way to name, enter and wait for a device; told on doubles of torch.cuda."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.stages.torch_utils.fake_gpus import stand_in
from tightfit.stages.torch_utils.devices import (
    device_of_tensors,
    enter_device,
    parse_device,
    preserve_random_states,
    require_device,
    synchronize_device,
)
from tightfit.stages.torch_utils.memory_meter import memory_session, time_calls
from tightfit.stages.torch_utils.model_factory import BuiltModel, all_tensors, move_built_model
from tightfit.stages.validate.measure import time_step_pairs
from tightfit.stages.validate.step_timer import StepTimer
from tightfit.stages.validate.training_step import StepRunner
from tightfit.util.errors import ModelError

ROOT = Path(__file__).parents[3]


def test_a_name_without_a_number_is_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, current=1)
    assert parse_device("cuda") == torch.device("cuda:1")
    assert parse_device("cuda:0") == torch.device("cuda:0")
    assert parse_device("cpu:0") == torch.device("cpu")
    with pytest.raises(ModelError, match="'gpu' is no device"):
        parse_device("gpu")


@pytest.mark.parametrize("name", ["mps", "xpu:0", "meta"])
def test_a_device_that_no_plan_is_for_is_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=f"not for the device '{name}'"):
        require_device(name)


@pytest.mark.parametrize("name", ["h100", "mine.json"])
def test_a_described_device_is_refused_where_ops_run(name: str) -> None:
    with pytest.raises(ModelError, match=f"'{name}' is described, and not here: plan for it in a"):
        require_device(name)


def test_a_device_that_is_not_here_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, count=2)
    require_device("cuda:1")
    with pytest.raises(ModelError, match="the device 'cuda:2' is not on this machine"):
        require_device("cuda:2")


def test_waiting_is_for_the_named_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = stand_in(monkeypatch)
    synchronize_device("cuda:1")
    synchronize_device("cpu")
    assert gpus.calls == [("synchronize", 1)]


def test_entering_makes_a_device_current(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = stand_in(monkeypatch)
    with enter_device("cuda:1"), enter_device("cpu"):
        assert gpus.current == 1
    assert gpus.current == 0


def test_times_are_taken_on_the_named_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = stand_in(monkeypatch)
    seen: list[int] = []
    time_calls("cuda:1", lambda: seen.append(gpus.current), lambda: seen.append(gpus.current))
    assert set(seen) == {1}
    assert {device for _, device in gpus.calls} == {1}


def test_a_session_tells_the_memory_of_the_named_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = stand_in(monkeypatch)
    gpus.take(1, 100)
    with memory_session("cuda:1") as running, running.section("step"):
        gpus.take(1, 64)
        gpus.take(1, -40)
        gpus.take(0, 5000)
    usage = running.section_usage("step")
    assert (usage.peak, usage.net) == (64, 24)
    assert set(gpus.calls) == {("synchronize", 1)}


def test_paired_steps_wait_for_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no input is a tensor on it."""
    gpus = stand_in(monkeypatch)
    layer = nn.Linear(2, 2)
    sample: tuple[Any, dict[str, Any]] = ((torch.ones(1, 2),), {})
    timer = StepTimer(layer, StepRunner([0], None), sample, "cuda:1")
    time_step_pairs(timer, timer.renewed(), 1)
    assert gpus.calls and set(gpus.calls) == {("synchronize", 1)}


def test_the_random_states_of_all_devices_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, count=3)
    forked: list[Any] = []
    original = torch.random.fork_rng

    def fork(devices: Any) -> Any:
        forked.append(devices)
        return original(devices=[])

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    with preserve_random_states():
        torch.manual_seed(1)
    assert forked == [[0, 1, 2]]


def test_a_model_moves_between_devices_of_one_kind() -> None:
    with FakeTensorMode():
        weight = torch.empty(2, 2, device="cuda:0")
        module = nn.Module()
        module.register_buffer("weight", weight)
        moved = move_built_model(
            BuiltModel(module, [((torch.empty(2, device="cuda:0"),), {})]), "cuda:1"
        )
    assert {str(tensor.device) for tensor in all_tensors(moved)} == {"cuda:1"}


def test_a_step_is_measured_where_its_model_is() -> None:
    with FakeTensorMode():
        tensors = [torch.empty(1), torch.empty(1, device="cuda:1")]
    assert device_of_tensors(tensors, "cuda") == torch.device("cuda:1")
    assert device_of_tensors(tensors, "cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["synchronize", "current_device"])
def test_only_one_module_waits_and_asks_for_the_current_device(name: str) -> None:
    wrong = []
    for path in sorted((ROOT / "stages").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == f"torch.cuda.{name}":
                wrong.append(str(path.relative_to(ROOT)))
    assert wrong == ["stages/torch_utils/devices.py"]
