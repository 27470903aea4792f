"""Gradients of several microbatches on the device: predicted to the byte, counted where asked."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import tightfit
from tests.tightfit.optimizer_steps import Measured, alike, loss
from tests.tightfit.test_parameter_offload import _small, adamw, deep
from tightfit import GradientOptions, OffloadOptions, ParameterOffloadOptions
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.util.errors import ConfigError

pytestmark = pytest.mark.usefixtures("traced_once")

__all__ = ["_small"]

ADDED_UP = GradientOptions(accumulate=True)


@pytest.mark.sample(only=["device-240000"])
@pytest.mark.parametrize(("parameters", "budget"), [("away", 140_000), ("device", 240_000)])
def test_microbatches_take_the_bytes_that_the_budget_counts(
    parameters: Any, budget: int, store: Path
) -> None:
    model, args = deep()
    plain = copy.deepcopy(model)
    with memory_session("cpu"):
        model = copy.deepcopy(model)
    expected = adamw(plain)
    fitted, made = tightfit.plan(
        model, args, loss=loss, optimizer=adamw(model), budget=budget, store=store,
        offload=OffloadOptions() if parameters == "device" else ParameterOffloadOptions(),
        gradients=ADDED_UP, check=False, progress=False,
    )  # fmt: skip
    optimizer: Any = made.optimizer
    whole = made.optimizer_step
    assert whole is not None and whole.total == whole.accumulating_total <= budget
    measured = Measured(fitted)
    for number in range(2):
        found = [
            measured.peak(args, None if last else optimizer.accumulating())
            for last in (False, False, True)
        ]
        for _ in range(3):
            loss(plain(*args)).backward()
        for each in (optimizer, expected):
            each.step()
            each.zero_grad()
        foretold = [whole.opening_peak, whole.adding_peak, whole.accumulating_peak]
        assert found[:2] == foretold[:2] and (not number or found[2] == foretold[2])
    assert whole.gradients == sum(
        parameter.numel() * 4 for parameter in plain.parameters() if parameter.requires_grad
    )
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    optimizer.close()


def test_what_has_no_room_for_gradients_is_told(store: Path) -> None:
    model, args = deep()
    given: dict[str, Any] = {"loss": loss, "store": store, "progress": False, "check": False}
    with pytest.raises(ConfigError, match="GradientOptions is for plans with an optimizer"):
        tightfit.plan(model, args, gradients=ADDED_UP, **given)
    more: dict[str, Any] = {
        "optimizer": adamw(model),
        "offload": ParameterOffloadOptions(microbatches=2),
    }
    with pytest.raises(ConfigError, match="leave one of the two out"):
        tightfit.plan(model, args, gradients=ADDED_UP, **given, **more)
    with pytest.raises(ConfigError, match="accumulate is 1, expected True or False"):
        GradientOptions(accumulate=1)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_budget_without_room_for_gradients_is_told(store: Path) -> None:
    model, args = deep()
    given: dict[str, Any] = {"loss": loss, "store": store, "progress": False, "check": False}
    given |= {"optimizer": adamw(model), "offload": ParameterOffloadOptions(), "budget": 84_000}
    with pytest.raises(ConfigError, match=r"no plan (fits|is known that fits) in 84,000 bytes"):
        tightfit.plan(model, args, gradients=ADDED_UP, **given)
    _, made = tightfit.plan(model, args, **given)
    whole = made.optimizer_step
    assert whole is not None and whole.total <= 84_000 < whole.accumulating_total
    made.optimizer.close()  # type: ignore[union-attr]
