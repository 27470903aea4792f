"""The package allocates what the schedule says, to the byte, and keeps nothing."""

from __future__ import annotations

import gc
import importlib
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from data import models
from tests.stages.conftest import Planned
from tests.stages.generate.plans import generated, keep_all, recompute, traced
from tests.stages.runtime.test_planned_module import run
from tests.stages.trace import modules
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.validate.training_step import StepRunner

MODELS: dict[str, Any] = {
    "gpt2": lambda: models.gpt2(2, 32, 2, 50, 2, 8, dropout=0.1),
    "resnet": lambda: models.resnet("resnet10", 2, 32),
    "structured": modules.structured,
    "heads": modules.heads,
    "shared": modules.shared,
    "bags": lambda: (nn.EmbeddingBag(12, 8, mode="max"), ((torch.arange(12).view(3, 4),), {})),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.long if name == "resnet" else ()) for name in MODELS
    ],
)
def profiled(request: Any, tmp_path_factory: Any) -> tuple[Graph, BuiltModel, Costs]:
    torch.manual_seed(0)
    graph, built = traced(MODELS[request.param](), request.param)
    with open_cost_library(tmp_path_factory.mktemp("library"), describe_device("cpu")) as library:
        return graph, built, profile(graph, built.loss, library)


@pytest.mark.parametrize("plan", ["keep", "in_place", "recompute"])
def test_the_measured_peak_is_the_schedules(profiled: Any, plan: str, tmp_path: Path) -> None:
    graph, built, costs = profiled
    executions = recompute(graph, 1, 0.8) if plan == "recompute" else keep_all(graph)
    steps = lower_to_schedule(graph, costs, executions, plan != "keep")
    planned = generated(graph, tmp_path / plan, executions, plan != "keep", costs)
    module, sample = planned.load(built.model), built.samples[0]
    stepper = StepRunner.of(graph, built)
    stepper.run(module, sample)
    forget(module, sample)
    fresh, held = measure_call_memory("cpu", lambda: stepper.run(module, sample))
    del held
    accumulating, held = measure_call_memory("cpu", lambda: stepper.run(module, sample))
    del held
    forget(module, sample)
    assert fresh.peak == simulate(graph, costs, steps).peak
    assert accumulating.peak == simulate(graph, costs, steps, accumulate=True).peak


def forget(module: nn.Module, sample: Any) -> None:
    module.zero_grad()
    for leaf in (*sample[0], *sample[1].values()):
        if isinstance(leaf, torch.Tensor):
            leaf.grad = None


def test_a_forward_without_backward_leaves_nothing(small: Planned) -> None:
    planned = small.package.load(small.model())
    x = small.inputs()
    run(planned, x)

    def forward() -> None:
        run(planned, x)

    usage, _ = measure_call_memory("cpu", forward)
    assert usage.peak > 0 and usage.net == 0


def test_a_backward_that_ends_early_leaves_nothing(small: Planned) -> None:
    planned = small.package.load(small.model())
    x = small.inputs()
    run(planned, x)

    def partly() -> None:
        loss = run(planned, x)["logits"].sum()
        torch.autograd.grad(loss, [planned.last.bias])

    usage, _ = measure_call_memory("cpu", partly)
    assert usage.net == 0


def test_an_input_is_let_go_when_it_is_no_longer_needed(small: Planned) -> None:
    planned = small.package.load(small.model())
    x = small.inputs()
    alive = weakref.ref(x)
    output = run(planned, x)
    del x
    output["logits"].sum().backward()
    gc.collect()
    assert alive() is None
    del output


def test_nothing_is_saved_by_autograd(small: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap = importlib.import_module(f"{small.package.__name__}.runtime.planned_module")
    monkeypatch.setattr(wrap, "check_call_context", lambda writes: None)
    planned = small.package.load(small.model())
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, pack):
        run(planned, small.inputs())
    assert packed == []
