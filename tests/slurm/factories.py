"""Models that a cluster has to deal with: small, slow, hungry."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[tuple[Tensor, ...], dict[str, Tensor]]]


def tower(width: int = 32, layers: int = 4) -> Made:
    """Layers alike, one after the other."""
    parts = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*parts).train(), ((torch.randn(64, width),), {})


def trained_tower(width: int = 32) -> tuple[nn.Module, Any, Any]:
    """A tower with the loss that a pipeline needs."""
    model, sample = tower(width)
    return model, sample, lambda output: output.square().mean()


def slow(seconds: float) -> Made:
    """A model that takes so long to build."""
    time.sleep(seconds)
    return tower()


def hungry(megabytes: int) -> Made:
    """A model that takes so much memory to build, for as long as Slurm needs to see it."""
    held = b"m" * (megabytes * 1_000_000)
    time.sleep(5)
    del held
    return tower()
