"""A planned step meets autocast around its backward and around several calls."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, traced
from tests.stages.runtime.test_planned_module import assert_same_gradients

cast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
uncached = functools.partial(cast, cache_enabled=False)
half = functools.partial(torch.autocast, "cpu", torch.float16)
off = functools.partial(cast, enabled=False)


class Scaled(nn.Module):
    """A parameter that no matrix product uses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).tanh()


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 6))


def normalized() -> nn.Module:
    """A layer whose backward has float32 operands under autocast, but in no matrix product."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Softmax(-1))


ROWS = torch.linspace(-1, 1, 48).reshape(8, 6)


def planned_under(region: Callable[..., object], model: nn.Module, at: Path) -> ModuleType:
    sample = ROWS.unsqueeze(1) if isinstance(next(iter(model.children()), 0), nn.Conv1d) else ROWS
    with region():  # type: ignore[attr-defined]
        graph, _ = traced((copy.deepcopy(model), ((sample,), {})))
    return generated(graph, at)


def step(model: nn.Module, around: Callable[..., object], x: torch.Tensor = ROWS) -> None:
    """A step with all of it inside a region."""
    with around():  # type: ignore[attr-defined]
        model(x).float().square().sum().backward()


@pytest.mark.parametrize("region", [cast, half, uncached])
@pytest.mark.parametrize("make", [perceptron, normalized])
def test_a_backward_in_the_region_is_eagers(
    make: Callable[[], nn.Module], region: Callable[..., object], tmp_path: Path
) -> None:
    model = make()
    planned = planned_under(region, model, tmp_path / "plan").load(copy.deepcopy(model))
    x = ROWS.unsqueeze(1) if make is normalized else ROWS
    for _ in range(2):
        step(planned, region, x)
        step(model, region, x)
    assert_same_gradients(planned, model)


def test_a_backward_that_autocast_would_cast_is_refused(tmp_path: Path) -> None:
    model = perceptron()
    package = planned_under(off, model, tmp_path / "plan")
    planned = package.load(copy.deepcopy(model))
    loss, expected = planned(ROWS).square().sum(), model(ROWS).square().sum()
    with cast(), pytest.raises(RuntimeError, match="call backward outside of autocast"):
        loss.backward()
    planned(ROWS).square().sum().backward()
    with cast():
        expected.backward()
    with pytest.raises(AssertionError):
        assert_same_gradients(planned, model)


def test_a_backward_that_autocast_leaves_alone_is_eagers(tmp_path: Path) -> None:
    model = Scaled()
    planned = planned_under(off, model, tmp_path / "plan").load(copy.deepcopy(model))
    for module in (planned, model):
        loss = module(ROWS).square().sum()
        with cast():
            loss.backward()
    assert_same_gradients(planned, model)


class Repeated(nn.Module):
    """A layer that is called twice, so that eager shares its casts or makes them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(ROWS.shape[-1], ROWS.shape[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x).relu())


def test_a_call_with_another_cache_is_refused_where_a_cast_is_used_twice(tmp_path: Path) -> None:
    model = Repeated()
    package = planned_under(cast, model, tmp_path / "plan")
    said = r"cache_enabled=True; plan within torch.autocast\(..., cache_enabled=False\)"
    with pytest.raises(package.PlanMismatch, match=said), uncached():
        package.load(model)(ROWS)
    package = planned_under(off, model, tmp_path / "other")
    with uncached(enabled=False):
        package.load(model)(ROWS)


@pytest.mark.parametrize(("planned", "called"), [(cast, uncached), (uncached, cast)])
def test_a_call_with_another_cache_is_eagers_where_each_cast_is_used_once(
    planned: Callable[..., object], called: Callable[..., object], tmp_path: Path
) -> None:
    model = perceptron()
    module = planned_under(planned, model, tmp_path / "plan").load(copy.deepcopy(model))
    for one in (module, model):
        step(one, called, ROWS)
    assert_same_gradients(module, model)


def together(model: nn.Module, region: Callable[..., object]) -> None:
    """Two calls in one region, one backward."""
    with region():  # type: ignore[attr-defined]
        loss = model(ROWS).square().sum() + model(ROWS.flip(0) * 3).square().sum()
    loss.backward()


def apart(model: nn.Module, region: Callable[..., object]) -> None:
    """Two calls in a region each, one backward."""
    losses = []
    for x in (ROWS, ROWS.flip(0) * 3):
        with region():  # type: ignore[attr-defined]
            losses.append(model(x).square().sum())
    sum(losses).backward()


def in_turn(model: nn.Module, region: Callable[..., object]) -> None:
    """Two calls in one region, a backward each."""
    with region():  # type: ignore[attr-defined]
        losses = [model(x).square().sum() for x in (ROWS, ROWS.flip(0) * 3)]
    for loss in losses:
        loss.backward()


def test_calls_that_would_share_casts_are_refused_in_one_backward(tmp_path: Path) -> None:
    model = perceptron()
    planned = planned_under(cast, model, tmp_path / "plan").load(copy.deepcopy(model))
    with pytest.raises(RuntimeError, match="give each call an autocast region of its own"):
        together(planned, cast)
    planned.zero_grad()
    together(model, cast)
    apart(planned, cast)
    with pytest.raises(AssertionError):
        assert_same_gradients(planned, model)


@pytest.mark.parametrize("use", [apart, in_turn])
def test_calls_that_share_no_casts_are_eagers(
    use: Callable[[nn.Module, Callable[..., object]], None], tmp_path: Path
) -> None:
    model = perceptron()
    planned = planned_under(cast, model, tmp_path / "plan").load(copy.deepcopy(model))
    for module in (planned, model):
        use(module, cast)
    assert_same_gradients(planned, model)


@pytest.mark.parametrize("region", [uncached, off])
def test_without_a_cache_calls_share_a_region(
    region: Callable[..., object], tmp_path: Path
) -> None:
    model = perceptron()
    planned = planned_under(region, model, tmp_path / "plan").load(copy.deepcopy(model))
    for module in (planned, model):
        together(module, region)
    assert_same_gradients(planned, model)


def test_a_weight_that_changes_inside_the_region_is_refused(tmp_path: Path) -> None:
    model = perceptron()
    package = planned_under(cast, model, tmp_path / "plan")
    planned = package.load(copy.deepcopy(model), on_mismatch="original")
    optimizer = torch.optim.SGD(planned.parameters(), lr=0.1)
    with cast():
        planned(ROWS).square().sum().backward()
        optimizer.step()
        with pytest.raises(package.PlanMismatch, match="leave the region after each step"):
            planned(ROWS)
    with cast():
        planned(ROWS).square().sum().backward()
