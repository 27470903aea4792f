"""Outputs that nobody may write into, and inputs of checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.stages.generate.plans import compare, generated, traced
from tests.stages.runtime.test_planned_module import assert_same_gradients


class Halves(nn.Module):
    """A mean and a spread, as of an encoder."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.layer, self.whole = nn.Linear(4, 6), whole

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x).tanh()
        one, other = y.chunk(2, -1)
        return (one, other * 2) if self.whole else (one, other)


@pytest.mark.parametrize("whole", [False, True])
def test_nobody_writes_into_one_of_several_views(whole: bool, tmp_path: Path) -> None:
    graph, built = traced((Halves(whole), ((torch.randn(3, 4),), {})))
    package = generated(graph, tmp_path / "plan")
    compare(package, built)
    planned, x = package.load(copy.deepcopy(built.model)), built.samples[0][0][0]
    for each in (planned, built.model):
        with pytest.raises(RuntimeError, match="returns multiple views"):
            each(x)[0].mul_(2)
    if whole:
        for each in (planned, built.model):
            each(x)[1].mul_(2).sum().backward()
        assert_same_gradients(planned, built.model)


class Given(nn.Module):
    """What it is given and a weight of its own, seen in another shape."""

    def __init__(self, seen: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4), seen

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x).tanh(), self.seen(x), self.layer.weight.t()


@pytest.mark.parametrize(
    "seen", [lambda x: x.view(2, 6), lambda x: x.unfold(1, 2, 1), lambda x: x[:1].expand(5, 4)]
)
def test_nobody_writes_into_a_view_of_a_leaf(
    seen: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    before = x.detach().clone()
    graph, built = traced((Given(seen), ((x,), {})))
    package = generated(graph, tmp_path / "plan")
    compare(package, built)
    planned = package.load(copy.deepcopy(built.model))
    for each in (planned, built.model):
        for output in each(x)[1:]:
            with pytest.raises(RuntimeError, match=r"modified inplace|leaf Variable"):
                output.mul_(2)
    assert torch.equal(x, before)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(checkpoint(torch.relu, x, use_reentrant=self.reentrant) + x)


def test_an_input_of_a_checkpoint_may_not_change(tmp_path: Path) -> None:
    """A plan may do without it where PyTorch runs the checkpoint again and refuses."""
    x = torch.randn(3, 4, requires_grad=True)
    graph, built = traced((Checkpointed(False), ((x,), {})))
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    for each in (planned, built.model):
        given = x.detach().clone().requires_grad_()
        loss = each(given).sum()
        with torch.no_grad():
            given.mul_(2)
        with pytest.raises(RuntimeError, match=r"changed in place|modified by an inplace"):
            loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_known(reentrant: bool) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    for model, expected in ((Checkpointed(reentrant), True), (nn.Linear(4, 4), False)):
        graph, _ = traced((model, ((x,), {})))
        assert f'"checkpointed": {str(expected).lower()}' in graph.guards
