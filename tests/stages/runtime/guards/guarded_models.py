"""Models whose forward hangs on more than tensors, importable without the stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

TEMPERATURE = 2.0
FLAGS = {"bias": True, "sizes": [1, 2]}
TABLE = torch.arange(3.0)
ACTIVATION = torch.tanh


def helper(x: torch.Tensor) -> torch.Tensor:
    """Reads a global of its own."""
    return x / TEMPERATURE if FLAGS["bias"] else x


@dataclass
class Settings:
    """A configuration."""

    scale: float = 3.0
    unread: int = 1
    shifts: list[float] = field(default_factory=lambda: [1.0, 2.0])


def scaling(factor: float) -> Any:
    """A function with a closure."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scaled


class Inner(nn.Module):
    """A layer with attributes of all kinds."""

    kind = "plain"
    late: Any

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(3)
        self.act = nn.GELU()
        self.alpha = 0.5
        self.table = torch.ones(3)
        self.sizes = [1, 2]
        self.unread = 0
        self.extra: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.act(self.norm(self.linear(x)))) * self.alpha + self.table
        if self.kind == "shifted":
            x = x + 1
        if hasattr(self, "late"):
            x = x + self.late
        if self.extra is not None:
            x = self.extra(x)
        return x * sum(self.sizes)


class Whole(nn.Module):
    """Reads attributes, a configuration, globals, a closure, and layers kept in a list."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.inner = Inner()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(layers))
        self.plain: Any = [nn.Softplus(beta=1.0)]
        self.settings = Settings()
        self.space = SimpleNamespace(shift=1.0)
        self.scaled = scaling(1.5)
        self.unused = nn.Linear(2, 2)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        for layer in self.layers:
            x = layer(x)
        x = self.plain[0](self.scaled(x)) * self.settings.scale + self.settings.shifts[0]
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.finish(ACTIVATION(helper(x)) + self.space.shift)

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        """Reads a global tensor."""
        return x * TABLE


class Pair(nn.Module):
    """Two inputs that may require gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.mean.add_(1)
        return self.weight * x + y * y


def scaled_by(factors: list[float]) -> Any:
    """A function with a list around it."""
    return lambda x: x * factors[0]


class Closing(nn.Linear):
    """Calls functions of one code, each with a list of its own around it."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.one, self.other = [2.0], [3.0]
        self.functions = [scaled_by(self.one), scaled_by(self.other)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for function in self.functions:
            x = function(x)
        return super().forward(x)
