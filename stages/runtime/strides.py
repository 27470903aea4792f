"""Hands gradients over in eager's strides, where somebody sees them before they are accumulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .intermediate_outputs import running_backward


def restore_eager_strides(
    gradients: list[torch.Tensor | None],
    strides: Sequence[tuple[int, ...] | None],
    receivers: Sequence[Any],
) -> None:
    """Lays the gradients out in these strides (None: as they are), unless the receiving node of
    autograd accumulates them, which lays them out as the step has done."""
    call = running_backward()
    asked = call is not None and call.f_code is torch.autograd.grad.__code__
    for number, (gradient, wanted) in enumerate(zip(gradients, strides, strict=True)):
        leaf = getattr(receivers[number], "variable", None)
        if gradient is None or wanted is None:
            continue
        if asked or leaf is None or leaf._backward_hooks:
            gradients[number] = copy_with_strides(gradient, wanted)


def copy_with_strides(gradient: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy in other strides; what repeats along a dimension of stride 0 is there once."""
    once = gradient
    for dim, stride in enumerate(strides):
        once = once.narrow(dim, 0, min(once.shape[dim], 1)) if stride == 0 else once
    copied = torch.empty_strided(once.shape, strides, dtype=once.dtype, device=once.device)
    return copied.copy_(once).expand(gradient.shape)


def has_layout(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor lies in memory as one of its shape with these strides would."""
    if 0 in tensor.shape:
        return True
    zipped = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in zipped)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether each byte between the first element and the last one is of one element."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


def match_spacing(
    tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """A copy with other gaps, those of these strides, of a tensor of this shape whose dimensions
    lie in order, as those of a slice do; any other tensor as it is."""
    if tuple(tensor.shape) != tuple(shape) or not has_ordered_strides(shape, tensor.stride()):
        return tensor
    return match_strides(tensor, shape, strides)


def match_strides(
    tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """A copy in these strides, through which gradients flow, of a tensor of this shape; one of
    another shape, or that lies so, as it is."""
    if tuple(tensor.shape) != tuple(shape) or has_layout(tensor, strides):
        return tensor
    copied = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    return copied.copy_(tensor)


def has_ordered_strides(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each element lies behind the one before it, perhaps with a gap."""
    room = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride < room:
            return False
        room = size * stride
    return True


def repeats_along_strides(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a gradient repeats what lies in the order of these strides, as that of a sum does."""
    zipped = zip(tensor.shape, tensor.stride(), strides, strict=True)
    ordered = [(wanted, stride) for size, stride, wanted in zipped if size > 1]
    kept = [stride for _, stride in sorted(ordered) if stride]
    return len(kept) < len(ordered) and kept == sorted(kept)
