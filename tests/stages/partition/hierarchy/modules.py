"""Small modules with what a forward can have that a chain of layers has not. All are factories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]


class Calls(nn.Module):
    """Two layers, of which a function makes an output."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.unused = nn.Parameter(torch.ones(3))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def made(function: Callable[..., Any]) -> Made:
    return Calls(function).train(), ((torch.randn(8, 8),), {})


def outputs_that_are_inputs() -> Made:
    return made(lambda m, x: (x, m.first(x), m.unused))


def unused_parameters() -> Made:
    return made(lambda m, x: m.second(torch.tanh(m.first(x))))


def one_output_of_several() -> Made:
    return made(lambda m, x: torch.sort(m.first(x)).values + torch.max(m.second(x), 1).values)


def scalars() -> Made:
    return made(lambda m, x: m.first(x).sum() * m.second(x).mean())


def empty_tensors() -> Made:
    return made(lambda m, x: torch.cat([m.first(x), torch.tanh(m.second(x))[:0]]))


def a_single_node() -> Made:
    return made(lambda m, x: m.first(x))


class Drops(nn.Module):
    """Two branches that both draw random numbers, and a buffer that is read, written and read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = nn.functional.dropout(self.layer(x), 0.5)
        right = nn.functional.dropout(torch.tanh(x), 0.5)
        before = left + self.seen
        self.seen.add_(1)
        return before + right + self.seen


def drops() -> Made:
    return Drops().train(), ((torch.randn(8, 8),), {})
