"""Hands gradients over in eager's strides, where somebody sees them before they are accumulated."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import torch


def as_in_eager(
    gradients: list[torch.Tensor | None],
    strides: Sequence[tuple[int, ...] | None],
    receivers: Sequence[Any],
) -> None:
    """Lays the gradients out in these strides (None: as they are), unless the receiving node of
    autograd accumulates them, which lays them out as the step has done."""
    asked = _are_asked()
    for number, (gradient, wanted) in enumerate(zip(gradients, strides, strict=True)):
        leaf = getattr(receivers[number], "variable", None)
        if gradient is None or wanted is None:
            continue
        if asked or leaf is None or leaf._backward_hooks:
            gradients[number] = _laid_out(gradient, wanted)


def _laid_out(gradient: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A copy in other strides; what repeats along a dimension of stride 0 is there once."""
    once = gradient
    for dim, stride in enumerate(strides):
        once = once.narrow(dim, 0, min(once.shape[dim], 1)) if stride == 0 else once
    made = torch.empty_strided(once.shape, strides, dtype=once.dtype, device=once.device)
    return made.copy_(once).expand(gradient.shape)


def _are_asked() -> bool:
    """Whether the running backward returns gradients instead of accumulating them."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is torch.autograd.grad.__code__:
            return True
        frame = frame.f_back
    return False
