"""Buffers that the forward assigns, and functions that look for absent gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, load_package, traced
from tightfit.util.errors import ModelError


class Remembers(nn.Module):
    """Puts its last hidden state in the place of a buffer."""

    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.layer(x) + self.state)
        self.state = hidden.detach()
        return hidden.sum()


class Looks(torch.autograd.Function):
    """Takes an absent gradient for another function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, one: Any, other: Any) -> Any:
        return one * 7 if other is None else one * 2 + other * 3


class LooksTwice(nn.Module):
    """Returns all, or one, of what such a function gives."""

    def __init__(self, every: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.every = every

    def forward(self, x: torch.Tensor) -> Any:
        made: Any = Looks.apply(self.layer(x))
        return made if self.every else made[0]


def test_who_holds_what_stood_in_a_buffer_keeps_it(tmp_path: Path) -> None:
    model, x = Remembers(), torch.randn(4, 8)
    graph, _ = traced((model, ((x,), {})))
    generated(graph, tmp_path / "module")
    left = []
    for module in (copy.deepcopy(model), load_package(tmp_path / "module").load(model)):
        kept = [(module.state, module.state_dict()["state"])]
        for _ in range(2):
            module(x).backward()
            kept.append((module.state, module.state_dict()["state"]))
        left.append([tensor for pair in kept for tensor in pair])
    for mine, theirs in zip(*left, strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(left[1][0], left[1][2])


def test_a_function_that_looks_for_absent_gradients_is_refused() -> None:
    with pytest.raises(ModelError, match=r"set_materialize_grads\(False\)"):
        traced((LooksTwice(True), ((torch.randn(4, 8),), {})))
    traced((LooksTwice(False), ((torch.randn(4, 8),), {})))
