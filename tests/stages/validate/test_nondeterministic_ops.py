"""Models whose own results differ from run to run on the CPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.validate.test_validate import PLAN
from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.predictions import find_nondeterministic_ops
from tightfit.stages.validate.validate import validate


class Rows(nn.Module):
    """Picks rows of a table, some more than once; `writes` puts some where they replace others."""

    def __init__(self, picks: bool, writes: bool = False) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))
        self.picks, self.writes = picks, writes

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.writes:
            return self.table.index_put((rows,), torch.ones(3))
        return self.table[rows] if self.picks else self.table * 2


class Noise:
    """Adds another small number each time, to the gradient of what a module returns."""

    def __init__(self, size: float) -> None:
        self.numbers = (size * number for number in itertools.count(1))

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: gradient + next(self.numbers))

    def __deepcopy__(self, memo: Any) -> Noise:
        return self


def rows(**what: bool) -> BuiltModel:
    torch.manual_seed(3)
    return check_factory_result((Rows(**what), [((torch.tensor([0, 2, 2, 4]),), {})]), "rows")


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ({"picks": True}, ["aten.index_put.default"]),
        ({"picks": False}, []),
        ({"picks": False, "writes": True}, []),
    ],
)
def test_only_what_accumulates_is_unordered(what: dict[str, bool], found: list[str]) -> None:
    assert find_nondeterministic_ops(trace(rows(**what), "rows")) == found


@pytest.mark.parametrize(
    ("picks", "noise", "more", "excused"),
    [
        (True, 1e-4, 1e-5, True),
        (True, 1e-4, 0.5, False),
        (True, 0.0, 1e-5, False),
        (False, 1e-4, 1e-5, False),
    ],
)
def test_a_plan_may_differ_where_the_original_does_and_it_is_said(
    picks: bool, noise: float, more: float, excused: bool
) -> None:
    built = rows(picks=picks)
    graph = trace(built, "rows")
    planned = rows(picks=picks).model
    planned.register_forward_hook(Noise(more))
    peak = validate(graph, built, PLAN, planned, 0).measurement.measured_peak
    if noise:
        built.model.register_forward_hook(Noise(noise))
    measured = validate(graph, built, {**PLAN, "peak": peak}, planned, 0).measurement
    assert measured.bits_equal is False
    if excused:
        assert measured.status == PLAN["status"], measured.message
        assert "aten.index_put.default adds in no fixed order" in measured.message
        assert "differ from run to run" in measured.message
    else:
        assert measured.status == "failed"
        assert measured.message.startswith("The gradient of table")
