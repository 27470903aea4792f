"""Who sees a gradient before it is accumulated sees it in the strides that it has in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from tests.stages.generate.plans import generated, same, traced
from tightfit.stages.generate.layouts import eager_gradient_strides

Seen = dict[str, torch.Tensor]
X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Turned(nn.Module):
    """Weights whose gradients arrive turned, repeated, and as they are."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.turned = nn.Parameter(torch.randn(2, 6, generator=generator))
        self.repeated = nn.Parameter(torch.randn(4, 2, generator=generator))
        self.plain = nn.Parameter(torch.randn(2, generator=generator))
        self.last = nn.Parameter(
            torch.randn(3, 4, 2, 5, generator=generator).contiguous(
                memory_format=torch.channels_last
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.turned.t().contiguous() * self.plain + self.repeated
        return (
            out.square().sum()
            + self.repeated.sum()
            + self.last.permute(3, 1, 0, 2).contiguous().cos().sum()
        )


def hooked(model: nn.Module, seen: Seen) -> None:
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: seen.update({name: gradient}))
    model(X).backward()


def asked(model: nn.Module, seen: Seen) -> None:
    named = dict(model.named_parameters())
    seen.update(zip(named, torch.autograd.grad(model(X), list(named.values())), strict=True))


def computed(model: nn.Module, seen: Seen) -> None:
    """Weights that are no leaves, as in meta-learning."""
    rate = torch.tensor(0.5, requires_grad=True)
    given = {name: parameter * rate for name, parameter in model.named_parameters()}
    for name, weight in given.items():
        weight.register_hook(lambda gradient, name=name: seen.update({name: gradient}))
    functional_call(model, given, (X,)).backward()
    assert rate.grad is not None
    seen["rate"] = rate.grad


def accumulated(model: nn.Module, seen: Seen) -> None:
    model(X).backward()
    seen.update({name: p.grad for name, p in model.named_parameters() if p.grad is not None})


@pytest.mark.parametrize("use", [hooked, asked, computed, accumulated])
def test_gradients_have_eagers_strides(use: Callable[..., None], tmp_path: Path) -> None:
    graph, built = traced((Turned(), ((X,), {})))
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    mine: Seen = {}
    theirs: Seen = {}
    use(planned, mine)
    use(built.model, theirs)
    assert mine.keys() == theirs.keys()
    assert {name for name in mine if not same(mine[name], theirs[name])} == set()


def test_the_gradients_that_are_unlike_are_known() -> None:
    graph, _ = traced((Turned(), ((X,), {})))
    [strides] = eager_gradient_strides(graph, [[gradient.gradient for gradient in graph.gradients]])
    found: dict[str, list[Any]] = {}
    for gradient, unlike in zip(graph.gradients, strides, strict=True):
        found.setdefault(graph.values[gradient.value].path, []).append(unlike)
    assert found["turned"] == [(1, 2)]
    assert found["plain"] == [None]
    assert (0, 0) in found["repeated"]
    assert found["last"] != [None]
