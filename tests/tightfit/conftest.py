"""A small model whose step has something to plan, and one store for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.combine import bounds
from stages.combine.moment.limits import Limits

SETTINGS: dict[str, Any] = {"peaks": 2, "saves": 2, "jobs": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def loose_bounds() -> Iterator[None]:
    """What no plan goes below is proven with less work, where no test asks how close it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "Limits", partial(Limits, nodes=1, checks=4))
        yield


class Tower(torch.nn.Module):
    """Layers whose activations take more than their parameters."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)).sigmoid()
        return x.square().mean()


def tower(seed: int = 0, **sizes: int) -> Tower:
    torch.manual_seed(seed)
    return Tower(**sizes).train()


def gradients(model: torch.nn.Module, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Those of the parameters after one step on the sum of the output."""
    model.zero_grad()
    model(*args, **kwargs).sum().backward()
    return [weight.grad for weight in model.parameters() if weight.grad is not None]
