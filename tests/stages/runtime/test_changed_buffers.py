"""Buffers that a backward reads, changed or not between the calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.stages.generate.plans import generated, traced
from tests.stages.runtime.test_planned_module import assert_same_gradients

ROWS = torch.linspace(-1, 1, 18).reshape(3, 6)


def planned_of(model: nn.Module, at: Path) -> nn.Module:
    graph, _ = traced((copy.deepcopy(model), ((ROWS,), {})))
    planned: nn.Module = generated(graph, at).load(copy.deepcopy(model))
    return planned


def normalized(training: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4).train(training))


def test_statistics_that_an_evaluation_reads_may_not_change(tmp_path: Path) -> None:
    model = normalized(False)
    for module in (planned_of(model, tmp_path / "plan"), model):
        loss = module(ROWS).square().sum()
        module.get_buffer("1.running_var").mul_(2)
        with pytest.raises(RuntimeError, match=r"running_var|modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize(
    "normalize", [parametrizations.spectral_norm, nn.utils.spectral_norm, lambda layer: layer]
)
def test_two_calls_that_write_buffers_are_in_flight(
    normalize: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(normalize(nn.Linear(6, 4)), nn.BatchNorm1d(4), nn.Linear(4, 4))
    planned = planned_of(model, tmp_path / "plan")
    for module in (planned, model):
        losses = [module(x).square().sum() for x in (ROWS, ROWS.flip(0) * 2)]
        for loss in losses:
            loss.backward()
    assert_same_gradients(planned, model)
    for one, other in zip(planned.buffers(), model.buffers(), strict=True):
        assert torch.equal(one, other)
