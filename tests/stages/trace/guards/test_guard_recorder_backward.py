"""Python that runs in the backward is watched as that of the forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, load_package
from tests.stages.runtime.guards.guarded_plans import traced_watched
from tightfit.util.errors import ModelError

STRENGTH = 1.0
SEEN: list[int] = []


class Reversal(torch.autograd.Function):
    """The gradient times a global."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -STRENGTH * gradient


class Model(nn.Module):
    """A layer around what `does` does."""

    def __init__(self, does: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.strength = 1.0
        self.does = does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self, self.layer(x))


def hooked(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda gradient: -self.strength * gradient)
    return x.tanh()


def reversed_gradient(self: Any, x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = Reversal.apply(x.tanh())
    return made


def remembers(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda gradient: SEEN.append(len(gradient)))
    return x


def counts(self: Any, x: torch.Tensor) -> torch.Tensor:
    def count(gradient: torch.Tensor) -> None:
        self.strength += 1.0

    x.register_hook(count)
    return x


def sample() -> Any:
    return (torch.ones(2, 3),), {}


@pytest.mark.parametrize(
    ("does", "sentence"),
    [(hooked, "has strength 0.1"), (reversed_gradient, "STRENGTH is 0.1, the plan was made with")],
)
def test_what_the_backward_reads_is_compared(
    does: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, built = traced_watched((Model(does), sample()))
    generated(graph, tmp_path / "module")
    package = load_package(tmp_path / "module")
    planned = package.load(built.model)
    planned(*sample()[0]).sum().backward()
    planned.strength = 0.1
    monkeypatch.setitem(globals(), "STRENGTH", 0.1)
    with pytest.raises(package.PlanMismatch, match=sentence):
        planned(*sample()[0])


@pytest.mark.parametrize(
    ("does", "sentence"), [(remembers, "changes the global SEEN"), (counts, "sets strength")]
)
def test_what_the_backward_changes_is_refused(does: Any, sentence: str) -> None:
    model = Model(does)
    with pytest.raises(ModelError, match=sentence):
        traced_watched((model, sample()))
    assert SEEN == [] and model.strength == 1.0
