"""Gradients of outputs as they arrive: in the layout, and of the ownership, that the step needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from .absent import Absent
from .facts import Tangent
from .strides import has_layout, is_dense, is_spread
from .surroundings import plain_gradient

Arrived = torch.Tensor | Absent


def arrived(
    tangent: torch.Tensor | None, expected: Tangent, number: int, device: torch.device
) -> Arrived:
    """The gradient of the output `number` in a layout that the step can take, or what stands for
    none. Raises RuntimeError where there is no such layout."""
    if tangent is None:
        return Absent.of(expected)
    tangent = plain_gradient(tangent, number)
    if expected.otherwise == "as it is" or has_layout(tangent, expected.strides):
        return tangent
    if expected.otherwise == "refused" and not is_spread(tangent, expected.strides):
        raise RuntimeError(
            f"the gradient of output {number} arrives with strides {tuple(tangent.stride())}, the "
            f"plan was made for {expected.strides}: plan with the loss (loss=), or lay it out by a "
            f"hook of that output, output.register_hook({_hook(expected)})"
        )
    copied = torch.empty_strided(
        expected.shape, expected.strides, dtype=getattr(torch, expected.dtype), device=device
    )
    return copied.copy_(tangent)


def _hook(expected: Tangent) -> str:
    """The text of a function that lays out a gradient as expected."""
    described = torch.empty_strided(expected.shape, expected.strides, device="meta")
    if described.is_contiguous():
        return "torch.Tensor.contiguous"
    call = f"new_empty_strided({expected.shape}, {expected.strides})"
    return f"lambda gradient: gradient.{call}.copy_(gradient)"


def own(tangents: list[Any], expected: Sequence[Tangent | None]) -> None:
    """Replaces gradients that the step overwrites or sends away by copies, where anybody else has
    hold of them or of their memory: the caller, a hook, another part of the graph. What no copy
    lies like stays as it is: the step only reads it, and sends nothing of it."""
    wanted = [layout for layout in expected if layout is not None]
    for position, layout in enumerate(wanted):
        if layout.overwritten and not _is_alone(tangents, position):
            tangents[position] = tangents[position].detach().clone()


def _is_alone(tensors: list[Any], position: int) -> bool:
    """Whether a list alone holds a tensor, and the tensor alone its memory."""
    if isinstance(tensors[position], Absent) or not is_dense(tensors[position]):
        return True
    # What the checking itself holds is what it holds of a tensor just made.
    return tensors[position].untyped_storage().resizable() and (
        _holders(tensors, position) == _holders([torch.empty(1)], 0)
    )


def _holders(tensors: list[Any], position: int) -> tuple[int, int, int]:
    """How often a tensor is held in C++ and in Python, and its storage."""
    storage = torch._C._storage_Use_Count(tensors[position].untyped_storage()._cdata)
    return tensors[position]._use_count(), sys.getrefcount(tensors[position]), storage
