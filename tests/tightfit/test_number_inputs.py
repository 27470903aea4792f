"""Floats among the arguments that change at each call become inputs of a plan."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tightfit
from tests.tightfit.conftest import SETTINGS
from tests.tightfit.test_multi_shape_module import rows

pytestmark = pytest.mark.usefixtures("brief_search", "loose_bounds")


class Annealed(torch.nn.Module):
    """An autoencoder whose second loss has a weight, used in each way that arithmetic allows."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32, dtype=dtype)
        self.last = torch.nn.Linear(32, 16, dtype=dtype)

    def forward(self, x: Tensor, weight: float = 1.0) -> Tensor:
        hidden = self.first(x).tanh()
        near = functional.mse_loss(self.last(weight * hidden - 0.5), x)
        far = (hidden * (1 - weight) + weight).square().mean() / (weight + 0.1)
        return near + weight * far - (weight - far) * 0.1 + (weight / (1.5 + hidden)).mean()


class Rounded(Annealed):
    """Takes the weight as a number alone."""

    def forward(self, x: Tensor, weight: float = 1.0) -> Tensor:
        return (self.last(self.first(x).tanh()).abs() ** weight).mean()


class Clamped(Annealed):
    """An operator takes a tensor as well, in another kernel."""

    def forward(self, x: Tensor, weight: float = 1.0) -> Tensor:
        return torch.clamp(self.last(self.first(x).tanh()), max=weight).mean()


class Asked(Annealed):
    """Decides by the weight."""

    def forward(self, x: Tensor, weight: float = 1.0) -> Tensor:
        hidden = self.first(x).tanh()
        return self.last(hidden if weight > 0.5 else hidden.sigmoid()).mean()


def planned(
    store: Path, make: Callable[..., torch.nn.Module], **options: Any
) -> tuple[Any, Any, tightfit.ChosenPlan]:
    """A planned module that plans again, its twin, and its plan."""
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(0)
    twin = make()
    settings = {"budget": "90%", "store": store, "progress": False, "on_mismatch": "replan"}
    sample = (rows(64).to(next(model.parameters()).dtype), 0.3)
    return (*_switched(tightfit.plan(model, sample, **{**settings, **SETTINGS, **options}), twin),)


def _switched(made: Any, twin: Any) -> tuple[Any, Any, tightfit.ChosenPlan]:
    return made[0], twin, made[1]


def same_step(fitted: Any, twin: Any, count: int, *args: Any, **kwargs: Any) -> bool:
    """Whether a step of both leaves the same bits."""
    found = []
    for model in (fitted, twin):
        model.zero_grad()
        output = model(rows(count).to(next(model.parameters()).dtype), *args, **kwargs)
        output.backward()
        found.append([output, *(weight.grad for weight in model.parameters())])
    return all(map(torch.equal, *found))


WEIGHTS = [0.3, 0.7, *(0.1 + number / 7 for number in range(9)), 0.0, -0.0, 1e-30, 1e3]


def test_an_annealed_weight_becomes_an_input(store: Path) -> None:
    fitted, twin, plan = planned(store, Annealed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for weight in WEIGHTS:
            assert same_step(fitted, twin, 64, weight)
            assert same_step(fitted, twin, 64, weight=weight)
        assert len(plan.replans) == 2
        for weight in WEIGHTS:
            assert same_step(fitted, twin, 24, weight=weight)
        assert len(plan.replans) == 3
        again = pickle.loads(pickle.dumps(fitted))
        assert all(same_step(again, twin, 64, weight) for weight in WEIGHTS)
        assert len(plan.replans) == 3
    assert {one.budget_total for one in plan.plans} == {plan.budget_total}


def test_a_weight_in_double_precision_has_all_its_digits(store: Path) -> None:
    fitted, twin, plan = planned(store, lambda: Annealed(torch.float64))
    assert all(same_step(fitted, twin, 64, weight) for weight in WEIGHTS)
    assert len(plan.replans) == 2


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Rounded, "pow"), (Clamped, "clamp"), (Asked, "data")],
    ids=["a power", "a bound", "a decision"],
)
def test_what_no_input_can_give_runs_the_original(kind: Any, said: str, store: Path) -> None:
    fitted, twin, plan = planned(store, kind)
    with pytest.warns(UserWarning, match=f"weight changes from call to call.*{said}") as told:
        assert all(same_step(fitted, twin, 64, 0.2 + weight) for weight in WEIGHTS[:9])
    assert len(told) == 1 and len(plan.replans) == 1


def test_an_argument_that_is_left_out_has_a_plan_of_its_own(store: Path) -> None:
    fitted, twin, plan = planned(store, Annealed)
    assert all(same_step(fitted, twin, 64, weight) for weight in WEIGHTS)
    assert same_step(fitted, twin, 64) and same_step(fitted, twin, 64, 1)
    assert len(plan.replans) == 3
