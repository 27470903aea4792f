"""Validation where the original model does not fit, and what it leaves on the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.torch_utils.fake_gpus import stand_in
from tests.stages.validate.test_validate import PLAN, Net, net
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import Measurement
from tightfit.stages.simulate.caching_allocator import AllocatorBytes
from tightfit.stages.torch_utils.devices import hold_on_host, move_tensors
from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.comparison import copy_model
from tightfit.stages.validate.measure import GpuUse, measure_gpu_memory
from tightfit.stages.validate.step_results import record_steps
from tightfit.stages.validate.training_step import (
    RandomOutputGradients,
    StepRunner,
    randomize_sample,
)
from tightfit.stages.validate.validate import check_planned_module, validate

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
OF_LIBRARY = RuntimeError(
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
)


class Planned(nn.Module):
    """Stands for a planned module: the model that it was made of, of another class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self.model.named_buffers(*args, **kwargs)


@pytest.fixture
def built() -> BuiltModel:
    torch.manual_seed(1)
    return check_factory_result(net(), "net")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(check_factory_result(net(), "net"), "net")


def no_memory(
    monkeypatch: pytest.MonkeyPatch,
    after: int = 0,
    error: Exception = FULL,
) -> None:
    """The original's steps run out of memory, but the first ones."""
    forward, seen = StepRunner.forward, []

    def limited(self: StepRunner, module: nn.Module, sample: Any) -> Any:
        if type(module) is Net:
            seen.append(1)
            if len(seen) > after:
                raise error
        return forward(self, module, sample)

    monkeypatch.setattr(StepRunner, "forward", limited)


def test_a_plan_is_measured_where_its_original_does_not_fit(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = validate(graph, built, PLAN, Planned(built.model), pairs=0).measurement.measured_peak
    no_memory(monkeypatch)
    plan = {**PLAN, "peak": peak}
    result = validate(graph, built, plan, Planned(built.model), pairs=3)
    found = result.measurement
    assert found.status == "feasible"
    assert found.message == (
        "fits Not compared, since the original model's step does not fit on cpu."
    )
    assert found.measured_peak == peak and found.peak_as_predicted
    assert found.bits_equal is None and found.output_difference is None
    assert found.original_peak is None and found.time_ratio is None
    assert found.measured_time is not None and found.measured_time > 0
    assert {point.run for point in result.line} == {"planned"}


def test_rounds_for_which_there_is_no_memory_are_named(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = validate(graph, built, PLAN, Planned(built.model), pairs=0).measurement.measured_peak
    no_memory(monkeypatch, after=4, error=OF_LIBRARY)
    found = validate(graph, built, {**PLAN, "peak": peak}, Planned(built.model), 0).measurement
    assert found.status == "feasible" and found.bits_equal is True
    assert "Not compared with two forwards before their backwards, on other" in found.message
    assert "the original model is not measured beside the plan on cpu" in found.message


def test_a_check_without_memory_for_the_original_warns(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_memory(monkeypatch)
    with pytest.warns(UserWarning, match="Not compared, since the original model's step does not"):
        assert check_planned_module(graph, built, Planned(built.model)) == ""


def test_a_plan_that_does_not_fit_fails(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(self: nn.Module, x: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Planned, "forward", full)
    found = validate(graph, built, PLAN, Planned(built.model), pairs=0).measurement
    assert found.status == "failed" and "OutOfMemoryError" in found.message


def test_taken_memory_is_that_of_the_named_device_and_changes_nothing(
    built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = stand_in(monkeypatch)
    gpus.take(1, 7000)
    gpus.take(0, 90000)
    before = {name: buffer.clone() for name, buffer in built.model.named_buffers()}
    drawn = torch.get_rng_state()
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: original(devices=[]))
    found = measure_gpu_memory(built.model, StepRunner([0, 1], None), built.samples[0], "cuda:1")
    assert found == GpuUse(AllocatorBytes(7000, 7168, 2 << 20), 300 << 20)
    assert ("empty_cache", 1) in gpus.calls
    assert {name for name, _ in gpus.calls} == {"empty_cache", "synchronize"}
    assert {device for _, device in gpus.calls} == {1}
    for name, buffer in built.model.named_buffers():
        assert torch.equal(buffer, before[name])
    assert torch.equal(torch.get_rng_state(), drawn)
    assert measure_gpu_memory(built.model, StepRunner([0], None), built.samples[0], "cpu") is None


original = torch.random.fork_rng


def judged(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch, total: int
) -> Measurement:
    """A plan for a GPU of which 900 bytes were reserved, 800 of them in blocks."""
    peak = validate(graph, built, PLAN, Planned(built.model), pairs=0).measurement.measured_peak
    monkeypatch.setattr(
        "tightfit.stages.validate.validate.measure_gpu_memory",
        lambda *_, **__: GpuUse(AllocatorBytes(700, 800, 900), 5000),
    )  # fmt: skip
    gpu = {"requested": 700, "allocated": 790, "reserved": 890, "workspaces": 0, "keep_all": 999}
    plan = {**PLAN, "peak": peak, "budget_bytes": peak, "budget_total": total, "gpu": gpu}
    return validate(graph, built, plan, Planned(built.model), pairs=0).measurement


def test_what_is_allocated_and_reserved_stands_beside_what_was_predicted(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(graph, built, monkeypatch, 900)
    assert (found.predicted_allocated, found.allocated_peak) == (790, 800)
    assert (found.predicted_reserved, found.reserved_peak) == (890, 900)
    assert found.status == "feasible" and found.within_budget


def test_a_plan_that_reserves_more_than_its_budget_fails(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(graph, built, monkeypatch, 899)
    assert found.status == "failed" and not found.within_budget
    assert found.message.startswith(
        "PyTorch's allocator reserves 900 bytes, over the budget of 899, where 890 were predicted"
    )


def test_trails_are_copies_on_the_host(built: BuiltModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    to = Tensor.to

    def noting(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        asked.append((*args, kwargs))
        return to(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", noting)
    trail = record_steps(built.model, StepRunner([0, 1], None), built.samples[:1], 3, steps=1)
    kept = [thing for thing in trail.gradients.values() if isinstance(thing, Tensor)]
    assert kept and asked.count(("cpu", {"copy": True})) >= len(kept)
    assert all(thing.device == torch.device("cpu") for thing in kept)


def test_ties_stay_when_a_model_waits_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(3, 3)
    module = nn.Sequential(layer, nn.Linear(3, 3))
    module[1].weight = layer.weight
    one = torch.ones(2)
    layer.register_buffer("one", one)
    module[1].register_buffer("other", one)
    moved: list[Any] = []

    def to(self: Tensor, device: Any) -> Tensor:
        moved.append(device)
        return self.clone()

    places = {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    monkeypatch.setattr(Tensor, "to", to)
    move_tensors(module, "cuda:1")
    assert module[1].weight is layer.weight and module[1].other is layer.one
    assert moved == ["cuda:1"] * 4
    for name, tensor in module.state_dict().items():
        assert tensor.data_ptr() != places[name]


def test_a_model_is_copied_to_the_host_without_a_copy_where_it_is() -> None:
    """Ties, classes and marks of parameters and buffers stay; nothing else differs."""
    layer = nn.Linear(3, 3)
    module: Any = nn.Sequential(layer, nn.Linear(3, 3), nn.BatchNorm1d(3))
    module[1].weight = layer.weight
    module[1].bias.requires_grad_(False)
    module[2].note = torch.ones(2)
    made: Any = copy_model(module, on_host=True)
    plain = copy_model(module)
    for one, other in zip(module.state_dict().items(), made.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])
        assert one[1].data_ptr() != other[1].data_ptr()
    assert made[1].weight is made[0].weight
    assert not made[1].bias.requires_grad and made[1].weight.requires_grad
    assert type(made[1].weight) is nn.Parameter
    assert dict(made.named_buffers()).keys() == dict(plain.named_buffers()).keys()
    assert made[2].note is not module[2].note
    module(torch.ones(4, 3)).sum().backward()
    again: Any = copy_model(module, on_host=True)
    assert layer.weight.grad is not None and again[0].weight.grad is None


def test_what_steps_have_no_use_for_waits_on_the_host() -> None:
    """In the strides that it has, sharing what it shares, and as the object that it is."""
    base = torch.arange(12.0)
    tensors = [base[2:8].view(2, 3).t(), base[4:], torch.ones(2, requires_grad=True), base[4:]]
    before = [(t, t.shape, t.stride(), t.storage_offset(), t.tolist()) for t in tensors]
    place = base.data_ptr()
    with hold_on_host(tensors):
        assert tensors[0].untyped_storage().data_ptr() != place
        tensors[1][0] = 50.0
        assert tensors[3][0] == 50.0 and base[4] == 4.0
    assert [t.data_ptr() for t in tensors][1] == tensors[3].data_ptr()
    for tensor, shape, stride, offset, _ in before:
        assert (tensor.shape, tensor.stride(), tensor.storage_offset()) == (shape, stride, offset)
    assert tensors[0].flatten().tolist() == [2.0, 5.0, 3.0, 6.0, 50.0, 7.0]
    assert tensors[2].requires_grad and tensors[2].is_leaf


def test_contents_and_tangents_are_drawn_on_the_host_whatever_the_default_device() -> None:
    sample: Any = ((torch.randn(4), torch.arange(4)), {})
    expected = randomize_sample(sample, 3)[0], RandomOutputGradients(3)(torch.zeros(2))
    with torch.device("meta"):
        found = (
            randomize_sample(sample, 3)[0],
            RandomOutputGradients(3)(torch.zeros(2, device="cpu")),
        )
    for one, other in zip(expected[0], found[0], strict=True):
        assert torch.equal(one, other)
    assert torch.equal(expected[1], found[1])
