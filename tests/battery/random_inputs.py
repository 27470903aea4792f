"""Contents of calls: every number gives others, of the same shapes."""

from __future__ import annotations

import torch
from torch import Tensor


def generator(number: int, place: int = 0) -> torch.Generator:
    """Random numbers of the contents of one input of a call."""
    return torch.Generator().manual_seed(1000 * number + place)


def normal(number: int, *shape: int, place: int = 0, grad: bool = False) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=generator(number, place)).requires_grad_(grad)


def whole(number: int, high: int, *shape: int, place: int = 0) -> Tensor:
    """Whole numbers from 0."""
    return torch.randint(0, high, shape, generator=generator(number, place))
