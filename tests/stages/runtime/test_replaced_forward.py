"""What replaces a model's forward on the instance runs around the planned one."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch

from tests.stages.conftest import Planned
from tests.stages.generate.plans import check_equal, step


def doubling(model: torch.nn.Module) -> None:
    """As libraries do it for mixed precision: the output is changed on the way out."""
    forward = model.forward

    @functools.wraps(forward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return [2 * out for out in torch.utils._pytree.tree_leaves(forward(*args, **kwargs))]

    model.forward = wrapper


def test_a_wrapper_runs_around_the_plan(small: Planned) -> None:
    original = small.model()
    planned = small.package.load(copy.deepcopy(original))
    sample: Any = ((small.inputs(),), {"scale": 2.0})
    for model in (planned, original):
        doubling(model)
    mine, given = step(planned, sample)
    theirs, other = step(original, sample)
    check_equal((planned, mine, given), (original, theirs, other))
    del planned.forward
    with pytest.raises(small.package.PlanMismatch, match="scale"):
        planned(small.inputs(), scale=3.0)


def test_a_wrapper_of_a_part_is_refused(small: Planned) -> None:
    planned = small.package.load(small.model())
    doubling(planned.norm)
    with pytest.raises(small.package.PlanMismatch, match="norm has forward"):
        planned(small.inputs(), scale=2.0)
