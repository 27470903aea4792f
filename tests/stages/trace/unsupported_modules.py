"""Small modules that cannot be traced, each for one reason. All are factories."""

from __future__ import annotations

import json
import random
from typing import Any

import torch
from torch import nn

from tests.stages.trace.modules import Made, Stepping


class Branching(nn.Module):
    """Control flow that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if y.sum() > 0:
            return y
        return -y


def branching() -> Made:
    return Branching(), ((torch.randn(3, 4),), {})


class Overwriting(nn.Module):
    """Changes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return self.linear(x)


def overwriting() -> Made:
    return Overwriting(), ((torch.randn(3, 4),), {})


def sparse() -> Made:
    return nn.Embedding(10, 4, sparse=True), ((torch.tensor([1, 2]),), {})


def detached() -> Made:
    class Detached(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).detach()

    return Detached(4, 4), ((torch.randn(3, 4),), {})


class Decoding(nn.Module):
    """Fails inside Python's own library."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * json.loads("no number")


def decoding() -> Made:
    return Decoding().train(), ((torch.randn(2, requires_grad=True),), {})


class Showing(Stepping):
    """Returns a view of the buffer that it writes."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), self.scale.view(2, 2)


def showing() -> Made:
    return Showing(), ((torch.randn(3, 4),), {})


class Listing(nn.Module):
    """Keeps a layer where PyTorch does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.others = [nn.Linear(4, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.others[0](self.first(x))


def listing() -> Made:
    return Listing(), ((torch.randn(3, 4),), {})


class Filling(nn.Linear):
    """Writes into the dictionary that it is given."""

    def forward(self, x: torch.Tensor, found: dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        found["hidden"] = super().forward(x)
        return found["hidden"].tanh()


def filling() -> Made:
    return Filling(4, 4), ((torch.randn(3, 4), {"first": torch.randn(1)}), {})


class Jumping(nn.Module):
    """Leaves out a layer now and then, as Python's random numbers fall."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if random.random() < 0.5:
                x = layer(x)
        return x + self.layers[0](x)


def jumping() -> Made:
    return Jumping(), ((torch.randn(3, 4),), {})
