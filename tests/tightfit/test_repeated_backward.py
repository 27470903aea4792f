"""Several backwards over one forward: what eager keeps or never came to, a plan computes again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.tightfit.conftest import SETTINGS

pytestmark = pytest.mark.usefixtures("loose_bounds")

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Heads(nn.Module):
    """Two outputs of one trunk, with a batch norm that updates its statistics once."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.first, self.last = nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(x)
        return self.first(hidden), self.last(hidden)


class Separate(nn.Module):
    """Two outputs whose graphs do not meet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        self.last = nn.Sequential(nn.Linear(8, 3), nn.Tanh())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.last(x)


class Noisy(Heads):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(nn.functional.dropout(x, 0.1))


def squares(outputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return outputs[0].pow(2).sum(), outputs[1].pow(2).sum()


def in_turn(model: nn.Module) -> None:
    one, other = squares(model(X))
    one.backward(retain_graph=True)
    other.backward()


def twice(model: nn.Module) -> None:
    loss = sum(squares(model(X)))
    for _ in range(3):
        loss.backward(retain_graph=True)  # type: ignore[union-attr]


def each_by_itself(model: nn.Module) -> None:
    one, other = squares(model(X))
    one.backward()
    other.backward()


def by_grad(model: nn.Module) -> None:
    """As methods do that weigh the gradients of several tasks."""
    one, other = squares(model(X))
    weights = list(model.parameters())
    first = torch.autograd.grad(one, weights, retain_graph=True, allow_unused=True)
    last = torch.autograd.grad(other, weights, allow_unused=True)
    for weight, mine, theirs in zip(weights, first, last, strict=True):
        zero = torch.zeros_like(weight)
        weight.grad = (zero if mine is None else mine) - (zero if theirs is None else theirs)


def planned_twins(kind: Callable[[], nn.Module], store: Path) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = kind()
    eager = copy.deepcopy(model)
    settings: dict[str, Any] = {**SETTINGS, "store": store, "budget": "min", "progress": False}
    return eager, tightfit.plan(model, (X,), **settings)[0]


@pytest.mark.parametrize(
    ("kind", "run"),
    [(Heads, in_turn), (Heads, twice), (Heads, by_grad), (Separate, each_by_itself)],
)
def test_further_backwards_are_eagers(
    kind: Callable[[], nn.Module], run: Callable[[nn.Module], None], store: Path
) -> None:
    eager, planned = planned_twins(kind, store)
    for _ in range(2):
        for one in (eager, planned):
            run(one)
    mine, theirs = ([weight.grad for weight in one.parameters()] for one in (planned, eager))
    assert all(map(torch.equal, mine, theirs))  # type: ignore[arg-type]
    assert all(map(torch.equal, planned.buffers(), eager.buffers()))


def step_between(model: nn.Module) -> None:
    one, other = squares(model(X))
    one.backward(retain_graph=True)
    torch.optim.SGD(model.parameters(), 0.1).step()
    other.backward()


def test_an_output_that_the_planned_loss_does_not_use_is_told(store: Path) -> None:
    settings: dict[str, Any] = {**SETTINGS, "store": store, "strategy": "keep_all"}
    loss = lambda outputs: squares(outputs)[0]  # noqa: E731
    planned, plan = tightfit.plan(Heads(), (X,), loss=loss, progress=False, **settings)
    assert plan.outputs_without_gradient == ("output[1]",)
    assert "none for output[1], which the planned loss does not use" in plan.summary()
    with pytest.raises(RuntimeError, match=r"give loss=None, .* what made the plan .*Fit"):
        planned(X)[1].sum().backward()


def test_what_eager_refuses_is_refused(store: Path) -> None:
    eager, planned = planned_twins(Heads, store)
    for run, said in ((each_by_itself, "retain_graph=True"), (step_between, "in.?place")):
        for one in (eager, planned):
            with pytest.raises(RuntimeError, match=said):
                run(one)


def test_a_second_backward_over_random_numbers_is_refused_by_name(store: Path) -> None:
    _, planned = planned_twins(Noisy, store)
    with pytest.raises(RuntimeError, match=r"random numbers.*one backward of their sum"):
        in_turn(planned)


def test_a_second_backward_over_an_input_that_is_gone_is_refused_by_name(store: Path) -> None:
    _, planned = planned_twins(Heads, store)
    one, other = squares(planned(X.clone()))
    one.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="an input of it is gone"):
        other.backward()
