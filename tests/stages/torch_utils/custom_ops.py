"""Registers operators as users and extensions do: some with all that planning needs, some not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

scaling = [2.0]
"""What `mine::scaled` multiplies by, for tests of an operator that changes."""


@torch.library.custom_op("mine::scaled", mutates_args=())
def scaled(x: torch.Tensor, shift: float) -> torch.Tensor:
    """Twice a tensor, and a shift."""
    return x * scaling[0] + shift


@torch.library.custom_op("mine::unfaked", mutates_args=())
def unfaked(x: torch.Tensor) -> torch.Tensor:
    """Has no fake kernel."""
    return x * 2


@torch.library.custom_op("mine::underived", mutates_args=())
def underived(x: torch.Tensor) -> torch.Tensor:
    """Has no derivative."""
    return x * 2


@torch.library.custom_op("mine::writing", mutates_args=("x",))
def writing(x: torch.Tensor) -> torch.Tensor:
    """Changes what it is given."""
    x.mul_(2)
    return x + 1


scaled.register_fake(lambda x, shift: torch.empty_like(x))
underived.register_fake(lambda x: torch.empty_like(x))
writing.register_fake(lambda x: torch.empty_like(x))
scaled.register_autograd(lambda ctx, gradient: (gradient * scaling[0], None))

LIBRARY = torch.library.Library("mine", "FRAGMENT")
LIBRARY.define("bare(Tensor x) -> Tensor")
LIBRARY.impl("bare", lambda x: x * 2, "CPU")
LIBRARY.impl("bare", lambda x: torch.empty_like(x), "Meta")


class Calling(nn.Module):
    """A layer before and one after an operator."""

    def __init__(self, operator: Any, grad: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)
        self.operator = operator
        self.grad = grad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x).relu()
        with torch.set_grad_enabled(self.grad):
            second = self.operator(first)
        return self.second(first * second)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """The operator that planning can take, by its packet."""
    return torch.ops.mine.scaled(x, 0.5)


def calling(rows: int = 16) -> tuple[Any, ...]:
    """A factory."""
    return Calling(shifted), ((torch.randn(rows, 32),), {})
