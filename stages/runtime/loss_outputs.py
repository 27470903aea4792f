"""Outputs of a model for a loss, whose gradients are taken as they arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class LossOutputs(torch.autograd.Function):
    """Gives tensors on as outputs of one node, as those of a planned module are, which takes their
    gradients as they arrive: what autograd adds to leaves may be a copy in other strides, as that
    of `output.sum()`, whose gradient repeats one number."""

    @staticmethod
    def forward(
        ctx: Any, taken: Callable[..., None], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The tensors; `taken` is called with their gradients, None for one without."""
        ctx.taken = taken
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[None, ...]:
        """Hands the gradients over, and goes no further back."""
        ctx.taken(*tangents)
        return (None, *(None for _ in tangents))
