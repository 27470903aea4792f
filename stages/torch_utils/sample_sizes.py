"""Samples of other sizes, made of those that are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tightfit.schemas.graph.dynamic_inputs import DynamicInputs
from tightfit.stages.runtime.pytree import flatten, read_tree
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample


def resize_samples(built: BuiltModel, sizes: Mapping[str, int]) -> BuiltModel:
    """The same model with samples of these sizes on its dynamic dimensions; it is `built` with the
    same dimensions."""
    assert built.dynamic is not None
    samples = [resize_sample(sample, built.dynamic, sizes) for sample in built.samples]
    return replace(built, samples=samples)


def resize_sample(sample: Sample, dynamic: DynamicInputs, sizes: Mapping[str, int]) -> Sample:
    """A sample whose dynamic dimensions have these sizes: contents are repeated from the first on,
    or left out behind. One tensor in several places stays one.

    Example:
        >>> ((longer,), _) = resize_sample(((ids,), {}), dynamic, {"batch": 4, "tokens": 100})
        >>> longer.shape
        torch.Size([4, 100])
    """
    leaves, text = flatten(sample)
    made: dict[int, Any] = {}
    for place, axes in dynamic.axes.items():
        leaf = leaves[place]
        if id(leaf) not in made:
            made[id(leaf)] = _resize_tensor(
                leaf, {axis: sizes[name] for axis, name in axes.items()}
            )
    args, kwargs = read_tree(text).unflatten([made.get(id(leaf), leaf) for leaf in leaves])
    return args, kwargs


def _resize_tensor(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """A tensor of other sizes, its dimensions in the same order in memory. A mask that masks
    something does so still."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    resized = tensor.detach()
    for axis, size in sizes.items():
        places = torch.arange(size, device=tensor.device) % tensor.shape[axis]
        resized = resized.index_select(axis, places)
    laid_out = resized.permute(order).contiguous()
    if _is_mask(tensor) and bool((laid_out == 1).all()):
        laid_out.view(-1)[-1] = 0
    turned = laid_out.permute([order.index(axis) for axis in range(tensor.dim())])
    return turned.requires_grad_(tensor.requires_grad)


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds zeros and ones alone, and not only ones, as numbers without a
    fraction."""
    if tensor.is_floating_point() or tensor.is_complex():
        return False
    return bool(((tensor == 0) | (tensor == 1)).all()) and not bool((tensor == 1).all())
