"""Whole steps are compared with those of torch.optim, and a fault in an update is told."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, traced
from tightfit.stages.runtime.offload.piecewise_optimizer import PiecewiseOptimizer
from tightfit.stages.validate.optimizer_steps import compare_optimizer_steps


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    graph, built = traced((model, ((torch.randn(4, 6),), {})))
    groups: list[dict[str, Any]] = [
        {"params": list(model[0].parameters())},
        {"params": [model[3].weight]},
    ]
    optimizer = torch.optim.AdamW(groups)
    package = generated(graph, tmp_path / "package")
    return graph, built, package.load, optimizer


def test_three_steps_are_compared_and_nothing_changes(planned: Any) -> None:
    graph, built, load, optimizer = planned
    before = copy.deepcopy(built.model.state_dict())
    state = torch.get_rng_state()
    assert compare_optimizer_steps(graph, built, load, optimizer) == ""
    assert torch.equal(torch.get_rng_state(), state) and not optimizer.state
    after = built.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in built.model.parameters())


def test_an_update_that_is_wrong_is_told(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    update = PiecewiseOptimizer.update

    def wrong(
        self: PiecewiseOptimizer, number: int, group: dict[str, Any], arriving: bool = False
    ) -> None:
        update(self, number, {**group, "eps": 1e-7} if number == 2 else group)

    monkeypatch.setattr(PiecewiseOptimizer, "update", wrong)
    graph, built, load, optimizer = planned
    said = compare_optimizer_steps(graph, built, load, optimizer)
    assert said == "After 3 steps of AdamW, 3.weight differs."
