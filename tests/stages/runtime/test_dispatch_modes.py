"""Modes, checkpoints and TorchScript around a call or a backward."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tests.stages.generate.plans import generated, traced
from tests.stages.runtime.test_planned_module import assert_same_gradients


def layer() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ((torch.randn(3, 4),), {})


class Halving(TorchFunctionMode):
    """Runs another function than was called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 0.5 if func is nn.functional.linear else found


class Doubling(TorchDispatchMode):
    """Runs another operator than was called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.ops.aten.mm.default else found


@pytest.mark.parametrize("mode", [Halving, Doubling])
def test_a_call_inside_a_mode_is_refused_or_the_original_runs(mode: Any, tmp_path: Path) -> None:
    graph, built = traced(layer())
    package, x = generated(graph, tmp_path / "plan"), built.samples[0][0][0]
    planned = package.load(copy.deepcopy(built.model))
    other = package.load(copy.deepcopy(built.model), on_mismatch="original")
    with mode():
        with pytest.raises(package.PlanMismatch, match=f"inside the mode {mode.__name__}"):
            planned(x)
        assert torch.equal(other(x), built.model(x))


def backward_inside(mode: Any, model: nn.Module, x: torch.Tensor) -> Any:
    loss = model(x).square().sum()
    with mode:
        loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("mode", [Halving(), torch.device("meta"), FlopCounterMode(display=False)])
def test_a_backward_does_not_meet_what_eagers_does_not(mode: Any, tmp_path: Path) -> None:
    graph, built = traced(layer())
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    x = built.samples[0][0][0]
    mine, theirs = (backward_inside(mode, each, x) for each in (planned, built.model))
    assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))


def test_a_backward_inside_a_dispatch_mode_is_refused(tmp_path: Path) -> None:
    graph, built = traced(layer())
    planned = generated(graph, tmp_path / "plan").load(built.model)
    with pytest.raises(RuntimeError, match="the backward is inside the mode Doubling"):
        backward_inside(Doubling(), planned, built.samples[0][0][0])


def normed() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), ((torch.randn(3, 4),), {})


@pytest.mark.parametrize("made", [layer, normed])
def test_a_checkpoint_around_what_writes_buffers_is_refused(made: Any, tmp_path: Path) -> None:
    """The checkpoint of PyTorch writes them twice."""
    graph, built = traced(made())
    package = generated(graph, tmp_path / "plan")
    planned, x = package.load(copy.deepcopy(built.model)), built.samples[0][0][0]
    if made is normed:
        with pytest.raises(package.PlanMismatch, match=r"inside checkpoint\(\).*twice"):
            checkpoint(planned, x, use_reentrant=False)
        return
    for each in (planned, built.model):
        checkpoint(each, x, use_reentrant=False).square().sum().backward()
    assert_same_gradients(planned, built.model)


def test_torchscript_traces_the_original(tmp_path: Path) -> None:
    graph, built = traced(layer())
    planned, x = generated(graph, tmp_path / "plan").load(built.model), built.samples[0][0][0]
    made = torch.jit.trace(planned, (x,), check_trace=False)
    assert torch.equal(made(x), planned(x))


def test_torch_fx_traces_the_original(tmp_path: Path) -> None:
    graph, built = traced(layer())
    planned, x = generated(graph, tmp_path / "plan").load(built.model), built.samples[0][0][0]
    made = torch.fx.symbolic_trace(planned)
    assert torch.equal(made(x), planned(x))
