"""Masks among the inputs of a model, and those that mask nothing: they hold only ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.runtime.pytree import flatten, read_tree
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample


def all_ones_leaves(built: BuiltModel) -> list[int]:
    """The leaves of (args, kwargs) that are tensors of nothing but ones in each of the samples,
    and have contents."""
    samples = [flatten(sample)[0] for sample in built.samples]
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        return [
            place
            for place, together in enumerate(zip(*samples, strict=True))
            if all(map(_is_ones, together))
        ]


def binary_mask_leaves(built: BuiltModel) -> list[int]:
    """The leaves of (args, kwargs) that are booleans or integers, zeros and ones alone in each of
    the samples, and not all ones in all of them."""
    samples = [flatten(sample)[0] for sample in built.samples]
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        return [
            place
            for place, together in enumerate(zip(*samples, strict=True))
            if all(map(_is_mask, together)) and not all(map(_is_ones, together))
        ]


def replace_masks(sample: Sample, masks: Sequence[int], ones: Collection[int]) -> Sample:
    """A sample in which of some masks these are ones, and the others are not."""
    leaves, text = flatten(sample)
    made: dict[int, Any] = {}
    for leaf in masks:
        mask = leaves[leaf]
        made.setdefault(id(mask), _ones_mask(mask) if leaf in ones else _padded_mask(mask))
    args, kwargs = read_tree(text).unflatten([made.get(id(leaf), leaf) for leaf in leaves])
    return args, kwargs


def _ones_mask(mask: Any) -> Any:
    made = mask.detach().clone().fill_(1)
    return made.requires_grad_(mask.requires_grad)


def _padded_mask(mask: Any) -> Any:
    """A mask that is not all ones: as it is, or with the last quarter of the last dimension left
    out, but for the first of several rows."""
    if not bool((mask == 1).all()):
        return mask
    made = mask.detach().clone()
    if not made.dim():
        return made.fill_(0)
    last = made.shape[-1]
    made.narrow(-1, last - max(last // 4, 1), max(last // 4, 1)).fill_(0)
    if made.dim() > 1 and len(made) > 1:
        made[0] = 1
    return made.requires_grad_(mask.requires_grad)


def _is_ones(leaf: Any) -> bool:
    return _has_contents(leaf) and bool((leaf == 1).all())


def _is_mask(leaf: Any) -> bool:
    if not _has_contents(leaf) or leaf.is_floating_point() or leaf.is_complex():
        return False
    return bool(((leaf == 0) | (leaf == 1)).all())


def _has_contents(leaf: Any) -> bool:
    plain = type(leaf) is torch.Tensor and leaf.layout == torch.strided
    return plain and leaf.numel() > 0 and leaf.device.type != "meta"
