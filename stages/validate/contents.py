"""Other contents for a sample: the same shapes, layouts and kinds of values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tightfit.stages.device.factory import Sample
from tightfit.stages.device.leaves import map_leaves


def fresh_contents(sample: Sample, seed: int, tied: bool = False) -> Sample:
    """A sample of the same shapes, strides and dtypes with other contents.

    Numbers with a fraction are drawn anew between the smallest and the largest that were there, so
    that probabilities stay such; all others, marks and what is not finite are arranged in another
    order. A tensor that the sample holds in several places becomes several tensors, unless `tied`.
    The default generators are left alone. `sample` itself keeps its tensors.
    """
    generator = torch.Generator().manual_seed(seed)
    known: dict[int, Tensor] = {}

    def renew(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if tied and id(leaf) in known:
            return known[id(leaf)]
        known[id(leaf)] = filled = _like(leaf, _values(leaf.detach(), generator))
        return filled

    return map_leaves(renew, sample)


def own_copy(sample: Sample) -> Sample:
    """The same contents in tensors of their own, which are leaves without gradient; what was one
    tensor in several places stays one."""
    known: dict[int, Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = _like(leaf, leaf.detach())
        return known[id(leaf)]

    return map_leaves(copied, sample)


def _values(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.layout != torch.strided or not tensor.numel():
        return tensor
    if not _is_measured(tensor):
        order = torch.randperm(tensor.numel(), generator=generator, device="cpu").to(tensor.device)
        return tensor.reshape(-1)[order].view(tensor.shape)
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj().contiguous())
        return torch.view_as_complex(_drawn(parts, generator).contiguous())
    return _drawn(tensor, generator)


def _is_measured(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.isfinite().all():
        return False
    if tensor.is_complex():
        return True
    first = tensor.reshape(-1)[0]
    others = tensor[tensor != first]
    return bool(others.numel()) and bool((others != others[0]).any())


def _drawn(tensor: Tensor, generator: torch.Generator) -> Tensor:
    low, high = tensor.min().double(), tensor.max().double()
    numbers = torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu")
    return (low + (high - low) * numbers.to(tensor.device)).to(tensor.dtype)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Values in a new tensor of the layout of another; where its elements share bytes, values of
    dimensions that do are those of their first place."""
    if tensor.layout != torch.strided:
        return values.clone().requires_grad_(tensor.requires_grad)
    filled = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    target = filled
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            target = target.narrow(dimension, 0, 1)
            values = values.narrow(dimension, 0, 1)
    target.copy_(values)
    return filled.requires_grad_(tensor.requires_grad)
