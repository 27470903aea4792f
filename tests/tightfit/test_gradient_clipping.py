"""Gradients that a loop clips, scales or reads where a plan has the optimizer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.tightfit.optimizer_steps import alike, loss
from tests.tightfit.test_backward_optimizer import SETTINGS, _own_folder, adamw, tied
from tests.tightfit.test_parameter_offload import _small, deep
from tightfit import GradientOptions, OffloadOptions, ParameterOffloadOptions
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.util.errors import ConfigError

__all__ = ["_own_folder", "_small"]

GONE = "is gone: the optimizer of the plan has updated .* plan with gradients=GradientOptions"


@pytest.mark.parametrize("parameters", ["device", "away"])
def test_clipping_by_norm_is_that_of_torch_in_the_bytes_predicted(
    parameters: Any, store: Path
) -> None:
    model, args = tied() if parameters == "device" else deep()
    plain = copy.deepcopy(model)
    expected = adamw(plain)
    offload = OffloadOptions() if parameters == "device" else ParameterOffloadOptions()
    more: dict[str, Any] = (
        SETTINGS if parameters == "device" else {"progress": False, "budget": "min"}
    )
    fitted, made = tightfit.plan(
        model, args, loss=loss, optimizer=adamw(model), store=store,
        gradients=GradientOptions(keep=True), offload=offload, **more,
    )  # fmt: skip
    optimizer, whole = made.optimizer, made.optimizer_step
    assert optimizer is not None and whole is not None
    for number in range(3):
        loss(plain(*args)).backward()
        with memory_session("cpu", lines=True) as running, running.section("backward"):
            output = fitted(*args)
            loss(output).backward()
        norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.01) for m in (plain, fitted)]
        assert norms[0] > 0.01 and torch.equal(*norms)
        with memory_session("cpu", lines=True) as stepping, stepping.section("step"):
            optimizer.step()
        expected.step()
        found = [running.section_usage("backward"), stepping.section_usage("step")]
        assert found[0].peak == whole.opening_peak
        if parameters == "device":
            most = max(found[0].peak, found[0].net + found[1].peak)
            assert most == (whole.peak if number else whole.first_peak)
        gradients = {p.grad for p in fitted.parameters() if p.grad is not None}
        assert sum(gradient.nbytes for gradient in gradients) == whole.gradients
        del output, gradients
        for each in (optimizer, expected):
            each.zero_grad()
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    assert alike(optimizer.state_dict(), expected.state_dict())
    optimizer.close()  # type: ignore[attr-defined]


def test_a_budget_counts_gradients_that_are_kept(store: Path) -> None:
    model: nn.Module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    args = (torch.ones(1, 64),)
    given: dict[str, Any] = {"loss": loss, "store": store, "check": False, "progress": False}

    def total(budget: Any, **gradients: bool) -> int:
        _, made = tightfit.plan(
            model, args, optimizer=adamw(model), strategy="rotor", budget=budget,
            gradients=GradientOptions(**gradients), **given,
        )  # fmt: skip
        assert made.optimizer_step is not None and made.optimizer is not None
        made.optimizer.close()  # type: ignore[attr-defined]
        return made.optimizer_step.total

    least, kept = total("min"), total("min", keep=True)
    assert least < kept == total(kept, keep=True)
    assert kept <= total("min", keep=True, accumulate=True)
    with pytest.raises(ConfigError, match=f"no plan fits in {least:,} bytes"):
        total(least, keep=True)


def test_a_loop_that_looks_at_gradients_that_are_gone_is_told(store: Path) -> None:
    model, args = tied()
    fitted, made = tightfit.plan(
        model, args, loss=loss, optimizer=adamw(model), store=store, check=False, **SETTINGS
    )
    optimizer: Any = made.optimizer
    loss(fitted(*args)).backward()
    with pytest.raises(RuntimeError, match=GONE):
        nn.utils.clip_grad_norm_(fitted.parameters(), 0.01)
    optimizer.step()
    output = loss(fitted(*args))
    optimizer.zero_grad()
    output.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=GONE):
        _ = [parameter.grad for parameter in model.parameters()]
    optimizer.close()


def test_what_gradients_are_not_kept_for_is_told(store: Path) -> None:
    model, args = deep()
    given: dict[str, Any] = {"store": store, "progress": False}
    given["gradients"] = GradientOptions(keep=True)
    with pytest.raises(ConfigError, match="GradientOptions is for plans with an optimizer"):
        tightfit.plan(model, args, **given)
    more: dict[str, Any] = {"optimizer": adamw(model)}
    more["offload"] = ParameterOffloadOptions(microbatches=2)
    with pytest.raises(ConfigError, match="leave one of the two out"):
        tightfit.plan(model, args, **given, **more)
    with pytest.raises(ConfigError, match="keep is 1, expected True or False"):
        GradientOptions(keep=1)  # type: ignore[arg-type]
