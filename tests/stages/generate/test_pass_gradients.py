"""Gradients leave when nothing reads their parameter any more, whole or in parts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from data import models
from tests.stages.generate.plans import compare, generated, keep_all, recompute, traced
from tests.stages.generate.test_memory import forget
from tightfit.schemas.actions import PassGradient
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate.package import zero_time_costs
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.validate.training_step import StepRunner


class Tied(nn.Module):
    """One weight embeds, mixes twice in between, and is the head."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size, size)
        self.mix = nn.Linear(size, size)
        self.head = nn.Linear(size, size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x)
        for _ in range(2):
            hidden = self.mix(self.head(hidden).tanh()).tanh()
        return self.head(hidden)


def tied() -> Any:
    return Tied(), ((torch.randint(0, 24, (5, 7)),), {})


def small_gpt2() -> Any:
    return models.gpt2(1, 32, 2, 50, 2, 8, dropout=0.1)


def plain_layers() -> Any:
    """Without biases, the gradient of a weight is there before the weight is read."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16, bias=False), nn.Tanh())]
    return nn.Sequential(*layers), ((torch.randn(8, 16, requires_grad=True),), {})


Plans = dict[str, Callable[[Graph], list[int]]]
PLANS: Plans = {
    "keep": keep_all,
    "some": lambda graph: recompute(graph, 1, 0.5),
    "all": lambda graph: recompute(graph, 2, 1.0),
}


@pytest.fixture(
    scope="module",
    params=[tied, plain_layers, small_gpt2, lambda: models.resnet("resnet10", 2, 32)],
)
def made(request: pytest.FixtureRequest) -> tuple[Graph, BuiltModel]:
    torch.manual_seed(0)
    return traced(request.param())


@pytest.mark.sample(5)
@pytest.mark.parametrize("plan", PLANS)
def test_an_optimizer_may_step_inside_the_backward(
    made: tuple[Graph, BuiltModel], plan: str, tmp_path: Path
) -> None:
    graph, built = made
    package = generated(graph, tmp_path / "plan", PLANS[plan](graph), True)
    twins = [copy.deepcopy(built.model) for _ in range(2)]
    pair = [package.load(twins[0]), twins[1]]
    for model in pair:
        stepping(model)
        for seed in (1, 2):
            torch.manual_seed(seed)
            args, kwargs = built.samples[0]
            output = model(*args, **kwargs)
            getattr(output, "logits", output).square().mean().backward()
    for one, other in zip(pair[0].parameters(), pair[1].parameters(), strict=True):
        assert torch.equal(one, other)


def stepping(model: nn.Module) -> None:
    """Steps each parameter as soon as its gradient is there, and drops the gradient."""

    def step(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.add_(parameter.grad, alpha=-0.5)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)


@pytest.fixture(scope="module")
def parts() -> tuple[Graph, BuiltModel]:
    torch.manual_seed(0)
    graph, built = traced(tied())
    owners = {gradient.value for gradient in graph.gradients}
    assert len(graph.gradients) == len(owners) + 5
    return graph, built


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("in_place", [False, True])
def test_parts_of_a_gradient_are_added_by_the_engine(
    parts: tuple[Graph, BuiltModel], plan: str, in_place: bool, tmp_path: Path
) -> None:
    graph, built = parts
    compare(generated(graph, tmp_path / "plan", PLANS[plan](graph), in_place), built)


def test_a_weight_that_is_also_used_outside_is_summed_in_eagers_order(
    parts: tuple[Graph, BuiltModel], tmp_path: Path
) -> None:
    graph, built = parts
    model = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    args, _ = built.samples[0]
    each: Any
    for each in (model, built.model):
        outside = each.head.weight.sin()
        twice = each(*args) + each(args[0].flip(0))
        ((twice @ each.head.weight).square().mean() + outside.sum()).backward()
    for one, other in zip(model.parameters(), built.model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)
    built.model.zero_grad()


@pytest.mark.parametrize("plan", PLANS)
def test_parts_take_the_memory_that_the_referee_says(
    parts: tuple[Graph, BuiltModel], plan: str, tmp_path: Path
) -> None:
    graph, built = parts
    with open_cost_library(tmp_path / "library", describe_device("cpu")) as library:
        costs = profile(graph, built.loss, library)
    executions = PLANS[plan](graph)
    steps = lower_to_schedule(graph, costs, executions, True)
    package = generated(graph, tmp_path / "plan", executions, True, costs)
    module, sample = package.load(copy.deepcopy(built.model)), built.samples[0]
    stepper = StepRunner.of(graph, built)
    stepper.run(module, sample)
    forget(module, sample)
    fresh, held = measure_call_memory("cpu", lambda: stepper.run(module, sample))
    del held
    accumulating, held = measure_call_memory("cpu", lambda: stepper.run(module, sample))
    del held
    assert fresh.peak == simulate(graph, costs, steps).peak
    assert accumulating.peak == simulate(graph, costs, steps, accumulate=True).peak


def test_a_part_is_added_at_once_and_the_whole_waits_for_the_last_read(
    parts: tuple[Graph, BuiltModel],
) -> None:
    graph, _ = parts
    costs = zero_time_costs(graph)
    steps = lower_to_schedule(graph, costs, recompute(graph, 2, 1.0), False)
    owner = next(value.id for value in graph.values if value.path == "tokens.weight")
    parts_of = [entry.gradient for entry in graph.gradients if entry.value == owner]
    handed = [step.action.value for step in steps if isinstance(step.action, PassGradient)]
    ours = [value for value in handed if value in parts_of]
    assert ours == [*parts_of[1:], parts_of[0]]
    played = simulate(graph, costs, steps).steps
    for before, step in itertools.pairwise(played):
        if isinstance(step.action, PassGradient) and step.action.value in parts_of[1:]:
            size = graph.storages[graph.values[step.action.value].storage]
            assert step.live == before.live - size
