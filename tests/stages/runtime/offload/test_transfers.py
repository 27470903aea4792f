"""Packages whose storages wait on disk: equal to the model, with the bytes that were predicted."""

from __future__ import annotations

import copy
import itertools
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from data import models
from tests.stages.generate.plans import PLAN, compare, load_package, same, traced
from tests.stages.generate.test_memory import forget
from tests.stages.simulate.test_transfers import schedule, three_layers
from tests.stages.trace import modules
from tightfit.schemas.actions import Action, Free, FreeHostCopy, Offload, Prefetch, Wait
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.generate.package import build_package, write_directory, zero_time_costs
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.runtime.offload.backward_optimizer import in_backward
from tightfit.stages.simulate.offload_layout import offload_layout
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.stages.validate.training_step import StepRunner

LINK = HostLink(1e9, 1e-5, False, device="cpu", to="disk")
MODELS: dict[str, Any] = {
    "gpt2": lambda: models.gpt2(1, 32, 2, 50, 2, 8, dropout=0.1),
    "structured": modules.structured,
    "shared": modules.shared,
}


CHOICES = [(0, 1, 2, 3), (0,), (3,), (0, 2), (1, 2)]
"""Which outputs receive a gradient."""


def leaves(graph: Graph, costs: Costs, seed: int, share: float) -> list[ScheduleStep]:
    """A schedule in which storages leave after a use and come back before a later one."""
    chance = random.Random(seed)
    problem = build_planning_graph(graph, costs)
    may = offloadable_values(graph, problem)
    order = [node.op for node in problem.nodes]
    uses: dict[int, list[int]] = {}
    for position, node in enumerate(problem.nodes):
        for storage in (*node.inputs, *node.outputs):
            uses.setdefault(storage, []).append(position)
    before: dict[int, list[Action]] = {}
    for storage, value in may.items():
        at = sorted(set(uses[storage]))
        gaps = [(one, other) for one, other in pairwise(at) if other > one + 1]
        if not gaps or chance.random() > share:
            continue
        one, other = chance.choice(gaps)
        places_ = sorted(chance.randint(one + 1, other) for _ in range(3))
        moves: list[Action] = [Offload(value), Free(value), Prefetch(value)]
        for place, action in zip(places_, moves, strict=True):
            before.setdefault(place, []).append(action)
    actions: list[Action] = []
    for position, run in enumerate(run_actions(problem, order)):
        actions += [*before.get(position, []), run]
    return ScheduleLowering(graph, problem).of_actions(actions, in_place=False)


def packaged(graph: Graph, costs: Costs, steps: list[ScheduleStep], directory: Path) -> ModuleType:
    played = simulate(graph, costs, steps, link=LINK).steps
    write_directory(directory, build_package(graph, played, PLAN))
    return load_package(directory)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_the_model(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(MODELS[name](), name)
    costs = zero_time_costs(graph)
    steps = leaves(graph, costs, 2, 1.0)
    compare(packaged(graph, costs, steps, tmp_path / "package"), built)
    text = (tmp_path / "package" / "step.py").read_text()
    assert text.count("transfers.release_storage(") == text.count("transfers.restore_storage(") > 0


class Wide(nn.Module):
    """Outputs whose gradients wait for others: as they arrive, in a view, and in a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, third = self.layers
        hidden = first(x)
        inner = second(hidden)
        turned = inner.view(8, 4, 4, 4).transpose(1, 2) + 1.0
        return turned.contiguous(), third(hidden + inner), hidden.relu(), inner.sin()


def _loss(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.stack([output.square().sum() for output in outputs]).sum()


def _of_more(dimension: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes a gradient a part of a larger tensor."""

    def lay(g: torch.Tensor) -> torch.Tensor:
        wide = torch.cat([g, g, g], dimension)
        return wide.narrow(dimension, g.shape[dimension], g.shape[dimension])

    return lay


GIVEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "held": lambda g: g,
    "foreign": lambda g: torch.from_numpy(g.numpy().copy()),
    "rows": _of_more(0),
    "columns": _of_more(-1),
    "one number": lambda g: g.flatten()[0].expand(g.shape),
    "one row": lambda g: g[:1].expand(g.shape),
    "turned": lambda g: g.transpose(0, -1).contiguous().transpose(0, -1),
}


@pytest.mark.parametrize("loss", [None, _loss])
def test_gradients_stay_with_who_gives_them_and_need_not_arrive(loss: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 16)
    graph, built = traced((Wide(), ((x,), {}), *([loss] if loss else [])), "wide")
    for seed in range(2):
        steps = leaves(graph, zero_time_costs(graph), seed, 1.0)
        package_ = packaged(graph, zero_time_costs(graph), steps, tmp_path / f"{seed}")
        twin, own = copy.deepcopy(built.model), copy.deepcopy(built.model)
        planned = package_.load(own)
        for given, chosen in itertools.product(GIVEN, CHOICES):
            gradients = [GIVEN[given](torch.randn(output.shape)) for output in twin(x)]
            expected = [gradient.clone() for gradient in gradients]
            for model in (planned, twin):
                model.zero_grad()
                outputs = model(x)
                torch.autograd.backward(
                    [outputs[i] for i in chosen], [gradients[i] for i in chosen]
                )
            assert all(map(torch.equal, gradients, expected))
            for one, other in zip(own.parameters(), twin.parameters(), strict=True):
                assert one.grad is other.grad or same(one.grad, other.grad), (given, chosen)


def test_the_bytes_are_those_predicted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(models.gpt2(1, 32, 2, 50, 2, 8, dropout=0.1), "gpt2")
    with open_cost_library(tmp_path / "library", describe_device("cpu")) as library:
        costs = profile(graph, built.loss, library)
    steps = leaves(graph, costs, 1, 0.7)
    foretold = simulate(graph, costs, steps, link=LINK)
    assert foretold.transfers is not None and foretold.transfers.offloaded_bytes > 0
    assert offload_layout(graph, steps).size >= foretold.transfers.host_peak
    module = packaged(graph, costs, steps, tmp_path / "package").load(built.model)
    sample, stepper = built.samples[0], StepRunner.of(graph, built)
    stepper.run(module, sample)
    forget(module, sample)
    fresh, held = measure_call_memory("cpu", lambda: stepper.run(module, sample))
    del held
    accumulating, held = measure_call_memory("cpu", lambda: stepper.run(module, sample))
    del held
    forget(module, sample)
    assert fresh.peak == foretold.peak
    assert accumulating.peak == simulate(graph, costs, steps, accumulate=True, link=LINK).peak


def test_places_are_used_again_once_they_are_free() -> None:
    graph, _ = three_layers()
    away: dict[int, list[Action]] = {
        2: [Offload(0), Offload(1)],
        3: [
            Wait(0),
            Wait(1),
            FreeHostCopy(0),
            Offload(2),
            Wait(2),
            FreeHostCopy(2),
            FreeHostCopy(1),
        ],
    }
    found = offload_layout(graph, schedule(away))
    assert found.size == 8 and sorted(found.begins.values()) == [0, 0, 4]


def test_a_backward_that_a_disk_ended_is_told_by_an_optimizer_that_steps_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    graph, built = traced(MODELS["shared"](), "shared")
    costs = zero_time_costs(graph)
    package_ = packaged(graph, costs, leaves(graph, costs, 2, 1.0), tmp_path / "package")
    module, stepper = package_.load(built.model), StepRunner.of(graph, built)
    optimizer: Any = in_backward(torch.optim.SGD(built.model.parameters(), lr=0.1))
    first, second = (stepper.forward(module, built.samples[0]) for _ in range(2))
    with monkeypatch.context() as broken:
        broken.setattr(os, "preadv", lambda *_: (_ for _ in ()).throw(OSError(5, "In or out")))
        with pytest.raises(RuntimeError, match=r"tensors cannot wait in files of .* \(In or out"):
            stepper.backward(first)
    with pytest.raises(RuntimeError, match=rf"files of {tmp_path} .*; this ended .* forward again"):
        stepper.backward(first)
    assert optimizer._taken
    words = rf"files of {tmp_path} \(In or out\): .*; this ended a backward"
    with pytest.raises(RuntimeError, match=words):
        stepper.backward(second)
    first = stepper.forward(module, built.samples[0])
    optimizer._taken.clear()
    optimizer._backwards.clear()
    with monkeypatch.context() as broken:
        broken.setattr(optimizer._updates, "update", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stepper.backward(first)
    with pytest.raises(RuntimeError, match=r"^division by zero; this ended .* forward again"):
        stepper.backward(first)
    optimizer.close()


def test_a_disk_that_fails_is_told_and_the_next_step_goes_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    graph, built = traced(MODELS["shared"](), "shared")
    costs = zero_time_costs(graph)
    package_ = packaged(graph, costs, leaves(graph, costs, 2, 1.0), tmp_path / "package")
    for none in (7, "", b"/tmp"):
        with pytest.raises(ValueError, match=f"disk is {none!r}, it can be the path of a folder"):
            package_.load(built.model, disk=none)
    module, stepper = package_.load(built.model), StepRunner.of(graph, built)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
        with pytest.raises(RuntimeError, match=r"tensors cannot wait in files of .* \(No space"):
            stepper.run(module, built.samples[0])
    monkeypatch.setenv("TIGHTFIT_DISK", "/nowhere")
    with pytest.raises(RuntimeError, match="files of /nowhere"):
        stepper.run(module, built.samples[0])
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))
    forget(module, built.samples[0])
    compare(package_, built)
