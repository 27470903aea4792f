"""Estimates the time of the nodes of a joint graph, and what they take inside."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

_RATES = {"cpu": (8e10, 6e9), "cuda": (1e14, 1.5e12)}
"""Operations and bytes a second of a device; only their ratio counts."""
_OVERHEAD = {"cpu": 2e-6, "cuda": 2e-6}
_ATTENTION_WORKSPACE = 1.4
"""What the backward of attention takes on the CPU, of the bytes of its queries."""
_CONVOLUTION_MARGIN = 1.05
"""What the copies of a convolution take, relative to those that are counted."""
_POOL_WORKSPACE = {
    "_low_memory_max_pool_with_offsets": 55,
    "_low_memory_max_pool_offsets_to_indices": 48,
}
"""Bytes for each item of their output that operators of inductor take if they run as they are."""
_NUMBER_BYTES = 16
"""A number among the operands is made a tensor of 8 bytes, then one of their type."""
_FUSED_SHARE = 0.25
"""The part of its reads and writes that a pointwise operator takes in a fused kernel."""


def size_hint(size: Any) -> int:
    """A size as a number, without a guard on a symbol."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return 4096 if found is None else int(found)


def hinted_bytes(value: Tensor) -> int:
    """Bytes of a tensor whose sizes may be symbols."""
    return prod(map(size_hint, value.shape)) * value.dtype.itemsize


def estimate_seconds(node: fx.Node, fuses: bool) -> float:
    """Seconds of a node by its operations and bytes (a roofline); 0 for views and sizes."""
    target, value = node.target, node.meta.get("val")
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return 0.0
    outputs = [each for each in pytree.tree_leaves(value) if isinstance(each, Tensor)]
    if not outputs or any(each.alias_info for each in target._schema.returns):
        return 0.0
    kind = outputs[0].device.type
    operations, bandwidth = _RATES.get(kind, _RATES["cuda"])
    args, kwargs = pytree.tree_map_only(
        fx.Node, lambda each: each.meta.get("val"), (node.args, node.kwargs)
    )
    operands = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    moved = sum(map(hinted_bytes, [*outputs, *operands]))
    if fuses and torch.Tag.pointwise in target.tags:
        return moved * _FUSED_SHARE / bandwidth
    return _OVERHEAD.get(kind, 0.0) + max(
        moved / bandwidth, count_flops(target, args, kwargs, value) / operations
    )


def count_flops(target: Any, args: Any, kwargs: Any, value: Any) -> int:
    """Floating-point operations by PyTorch's own table; 0 for what it does not know."""
    count = flop_registry.get(target._overloadpacket)
    if count is None:
        return 0

    def described(each: Tensor) -> Tensor:
        return torch.empty([*map(size_hint, each.shape)], dtype=each.dtype, device="meta")

    shaped = pytree.tree_map_only(Tensor, described, (args, kwargs, value))
    return int(count(*shaped[0], **shaped[1], out_val=shaped[2]))


def workspace_bytes(node: fx.Node, fuses: bool) -> int:
    """Bytes that an operator takes on the CPU beside its outputs while it runs: of convolutions, of
    the backward of attention and, if no backend fuses them, of max pooling, of numbers and of
    operands of several types, as measured."""
    name = getattr(getattr(node.target, "_overloadpacket", None), "__name__", "")
    if name in ("convolution", "convolution_backward"):
        return _convolution_workspace(node, name == "convolution_backward", fuses)
    if name in _POOL_WORKSPACE and not fuses:
        first = pytree.tree_leaves(node.meta["val"])[0]
        return _POOL_WORKSPACE[name] * (hinted_bytes(first) // first.dtype.itemsize)
    if "attention" in name and "cpu_backward" in name:
        return int(_ATTENTION_WORKSPACE * hinted_bytes(_values(node.args[1:2])[0]))
    if fuses:
        return 0
    numbers = any(isinstance(each, int | float) for each in node.args)
    return _NUMBER_BYTES * numbers + _promotion_workspace(node, name)


def _promotion_workspace(node: fx.Node, name: str) -> int:
    """What a pointwise operator takes on the CPU for operands of another type than that in which it
    computes: a copy of each."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return 0
    operands = [each for each in _values(node.args[name == "where" :]) if each.dim()]
    types = {each.dtype for each in operands}
    if len(types) < 2 or operands[0].device.type != "cpu":
        return 0
    common = functools.reduce(torch.promote_types, types)
    counts = (
        hinted_bytes(each) // each.dtype.itemsize for each in operands if each.dtype != common
    )
    return sum(counts) * common.itemsize


def _convolution_workspace(node: fx.Node, backward: bool, channels_last: bool) -> int:
    """What oneDNN's copies of input, weight and output take; none of what is a matrix product,
    unless images are given with channels last, as inductor does."""
    tensors = _values(node.args[1:3] if backward else node.args[:2])
    sizes: tuple[Any, ...] = node.args[4 if backward else 3 :]
    strides, padding = sizes[:2]
    extents = [*map(size_hint, tensors[1].shape[2:]), *(each + 1 for each in padding)]
    is_product = all(extent == 1 for extent in (*extents, *strides)) and not channels_last
    if tensors[1].device.type != "cpu" or is_product:
        return 0
    given, weight = map(hinted_bytes, tensors)
    if not backward:
        taken = max(given + weight, hinted_bytes(node.meta["val"]))
    else:
        output = hinted_bytes(_values(node.args[:1])[0])
        taken = max(weight, 2 * given - weight, given + output)
    return int(_CONVOLUTION_MARGIN * taken)


def _values(args: Any) -> list[Tensor]:
    """The tensors of some arguments."""
    found = [each.meta.get("val") for each in args if isinstance(each, fx.Node)]
    return [each for each in found if isinstance(each, Tensor)]
