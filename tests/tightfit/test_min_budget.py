"""Plans of the least budget with an optimizer: trained as without, in the bytes predicted."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import tightfit
from tests.tightfit.optimizer_steps import check_three_steps, loss
from tests.tightfit.test_parameter_offload import _small, adam, adamw, deep, momentum
from tightfit import OffloadOptions, ParameterOffloadOptions
from tightfit.stages.torch_utils.memory_meter import memory_session

pytestmark = pytest.mark.usefixtures("traced_once")

__all__ = ["_small"]


@pytest.mark.sample(only=["adamw-away"])
@pytest.mark.parametrize("parameters", ["device", "away"])
@pytest.mark.parametrize("kind", [momentum, adam, adamw])
def test_three_steps_of_the_least_budget_are_those_of_torch(
    kind: Any, parameters: Any, store: Path
) -> None:
    model, args = deep()
    plain = copy.deepcopy(model)
    # The meter knows the bytes of what was made while it ran.
    with memory_session("cpu"):
        model = copy.deepcopy(model)
    fitted, made = tightfit.plan(
        model, args, budget="min", loss=loss, optimizer=kind(model), store=store,
        offload=OffloadOptions() if parameters == "device" else ParameterOffloadOptions(),
        check=False, progress=False,
    )  # fmt: skip
    optimizer: Any = made.optimizer
    assert made.optimizer_step is not None and made.budget_total is not None
    assert parameters == "device" or made.optimizer_step.total == made.budget_total
    check_three_steps(fitted, optimizer, plain, kind(plain), args, made.optimizer_step)
    optimizer.close()
