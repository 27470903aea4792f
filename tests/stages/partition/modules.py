"""Small modules that can and cannot be cut. All are factories."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from data.models import gpt2

Made = tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]


class Layers(nn.Module):
    """Equal residual layers that all add one table: "parameter" (a gradient flows through it),
    "mask" (computed, but no gradient flows) or "none"; the sum of the table is computed once."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.table = nn.Parameter(torch.ones(8, 8)) if table == "parameter" else None
        self.mask = table == "mask"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = None
        if self.table is not None:
            shared = torch.exp(self.table) + 1
        elif self.mask:
            shared = torch.arange(8).unsqueeze(0).expand(8, 8).float() * 2
        for layer in self.layers:
            y = layer(x) if shared is None else layer(x) * shared
            x = x + y
        return x


def layers(table: str = "none") -> Made:
    return Layers(table).train(), ((torch.randn(8, 8),), {})


class Ending(nn.Module):
    """Two outputs: one in the middle of the chain, one at its end; the middle one goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.second = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle = self.first(x)
        return middle, self.second(middle)


def ending() -> Made:
    return Ending().train(), ((torch.randn(8, 8),), {})


def ending_with_loss() -> tuple[nn.Module, Any, Any]:
    return (*ending(), lambda outputs: outputs[0].sum() + (outputs[1] ** 2).sum())


def masked_gpt2(batch: int, tokens: int, **arguments: Any) -> Made:
    """GPT-2 that is given an attention mask, from which it makes one for all its layers."""
    model, (args, _) = gpt2(batch=batch, tokens=tokens, **arguments)
    return model, (args, {"attention_mask": torch.ones(batch, tokens, dtype=torch.int64).tril()})


class Tied(nn.Module):
    """Layers with one weight before and behind them, which autocast casts once for both uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = torch.tanh(x @ self.weight)
            for layer in self.layers:
                x = x + layer(x)
            return torch.tanh(x @ self.weight)


def tied_cast() -> Made:
    return Tied().train(), ((torch.randn(8, 8),), {})
