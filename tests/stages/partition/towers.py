"""Models of towers that meet in a loss, and some that only seem so. All are factories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]


def tower(width: int, depth: int, *more: Callable[[], nn.Module]) -> nn.Sequential:
    """Residual layers of one width, with more modules in each."""
    return nn.Sequential(*(_Layer(width, *(make() for make in more)) for _ in range(depth)))


class _Layer(nn.Module):
    def __init__(self, width: int, *more: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.Tanh(), *more, nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Towers(nn.Module):
    """Towers of inputs of their own, whose outputs are multiplied with each other."""

    def __init__(self, *towers: nn.Module) -> None:
        super().__init__()
        self.towers = nn.ModuleList(towers)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        found = [tower(x) for tower, x in zip(self.towers, inputs, strict=True)]
        product = found[0]
        for other in found[1:]:
            product = product * other
        return (product * self.scale.exp()).sum()


def _made(model: nn.Module, count: int, rows: int = 256, width: int = 8) -> Made:
    return model.train(), (tuple(torch.randn(rows, width) for _ in range(count)), {})


def unlike() -> Made:
    """Two towers of other depths and weights."""
    return _made(Towers(tower(8, 5), tower(8, 3)), 2)


def three() -> Made:
    """Three towers."""
    return _made(Towers(tower(8, 2), tower(8, 3), tower(8, 2)), 3)


def siamese() -> Made:
    """One tower for two inputs, which counts statistics."""
    shared = tower(8, 4, lambda: nn.BatchNorm1d(16))
    return _made(Towers(shared, shared), 2)


def drawing() -> Made:
    """Two towers that draw random numbers."""
    return _made(Towers(*(tower(8, 3, nn.Dropout) for _ in range(2))), 2)


class _Turns(nn.Module):
    """Two towers whose layers run in turns and draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (tower(8, 3, nn.Dropout) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for one, other in zip(self.one, self.other, strict=True):
            x, y = one(x), other(y)
        return (x * y).sum()


def turns() -> Made:
    """No order of the towers keeps that of the random numbers."""
    return _made(_Turns(), 2)


class _Head(nn.Module):
    """Two towers of one layer, and most of the work after they have met."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = tower(8, 2), tower(8, 2)
        self.head = tower(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.one(x) * self.other(y)).sum())


def headed() -> Made:
    """A net that is mostly head."""
    return _made(_Head(), 2)


class _Talking(nn.Module):
    """Two towers of which the second reads what the first made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = tower(8, 4), tower(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for one, other in zip(self.one, self.other, strict=True):
            x = one(x)
            y = other(y) + x
        return (x * y).sum()


def talking() -> Made:
    """A net whose towers meet all the way."""
    return _made(_Talking(), 2)
