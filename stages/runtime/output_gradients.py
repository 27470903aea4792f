"""Gradients that did not arrive: what depends on them alone is absent too.

The backward is linear in the gradients of the outputs. An operator that is given an absent one,
and no other gradient, gives an absent result and does not run. Where several gradients meet, a sum
is what is there, and any other operator sees zeros for what is not, as in autograd.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .call_context import as_plain_gradient
from .interface import OutputGradientSpec
from .strides import copy_with_strides, has_layout, is_dense, repeats_along_strides


class MissingGradient:
    """Stands for a tensor that is not there; `meta` has its shape, strides and dtype."""

    def __init__(self, meta: torch.Tensor) -> None:
        self.meta = meta

    @classmethod
    def of(cls, tangent: OutputGradientSpec) -> MissingGradient:
        """Stands for the gradient of an output."""
        dtype = getattr(torch, tangent.dtype)
        return cls(torch.empty_strided(tangent.shape, tangent.strides, dtype=dtype, device="meta"))

    @classmethod
    def __torch_function__(
        cls,
        operator: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(not issubclass(kind, (cls, torch.Tensor)) for kind in types):
            return NotImplemented
        return pytree.tree_map_only(torch.Tensor, cls, _run_on_meta(operator, args, kwargs or {}))


def combine_gradients(operator: Any, gradients: int, loose: bool, *args: Any, **kwargs: Any) -> Any:
    """What an operator gives, of whose operands so many are gradients. Where one alone of a sum is
    there, the result has the strides of that one, as in eager; raises RuntimeError where these are
    not the planned ones and what follows is not `loose` about it."""
    leaves = pytree.tree_leaves((args, kwargs))
    absent = {id(leaf) for leaf in leaves if isinstance(leaf, MissingGradient)}
    if len(absent) in (0, gradients):
        return operator(*args, **kwargs)
    present = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if operator._schema.name in ("aten::add", "aten::add_"):
        return _present_operand(present, _run_on_meta(operator, args, kwargs), loose)
    zeros = {
        id(leaf): torch.zeros_like(leaf.meta, device=present[0].device)
        for leaf in leaves
        if isinstance(leaf, MissingGradient)
    }
    args, kwargs = pytree.tree_map_only(
        MissingGradient, lambda leaf: zeros[id(leaf)], (args, kwargs)
    )
    return operator(*args, **kwargs)


def reshape_for_view(gradient: Any, shape: Sequence[int], apart: bool = False) -> Any:
    """The gradient where it has a view of this shape, or a copy of it where the result is to be
    `apart` and a copy lies alike; else a contiguous copy, as a reshape of eager makes one."""
    if isinstance(gradient, MissingGradient):
        return torch.ops.aten.clone.default(gradient, memory_format=torch.contiguous_format)
    reshaped = gradient.reshape(shape)
    if reshaped.data_ptr() == gradient.data_ptr():
        return gradient.clone() if apart and is_dense(gradient) else gradient
    return reshaped.view(gradient.shape)


def _present_operand(
    present: list[torch.Tensor], result: torch.Tensor, loose: bool
) -> torch.Tensor:
    """The one operand of a sum that is there: itself where the sum overwrites it, else a copy."""
    if len(present) > 1:
        return present[-1]
    [one] = present
    spread = repeats_along_strides(one, result.stride())
    if has_layout(one, result.stride()) or (spread and not loose):
        planned = torch.empty_strided(
            result.shape, result.stride(), dtype=result.dtype, device=one.device
        )
        return planned.copy_(one)
    copy = one.to(result.dtype, copy=True)
    if loose and not has_layout(copy, one.stride()):
        copy = copy_with_strides(one.to(result.dtype), one.stride())
    if not loose:
        raise RuntimeError(
            f"only some of the outputs have a gradient, which comes with strides {one.stride()} "
            f"where the plan was made for {result.stride()}: let all outputs take part in the "
            "loss, as by adding 0.0 * output.sum(), or plan with the loss (loss=)"
        )
    return copy


def _run_on_meta(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result on the meta device, where nothing is computed."""
    seen: dict[int, torch.Tensor] = {}

    def described(leaf: Any) -> Any:
        if isinstance(leaf, MissingGradient):
            return leaf.meta
        if isinstance(leaf, torch.device):
            return torch.device("meta")
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in seen:
            seen[id(leaf)] = torch.empty_strided(
                leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta"
            )
        return seen[id(leaf)]

    args, kwargs = pytree.tree_map(described, (tuple(args), dict(kwargs)))
    return operator(*args, **kwargs)


OutputGradient = torch.Tensor | MissingGradient


def receive_output_gradient(
    tangent: torch.Tensor | None, expected: OutputGradientSpec, number: int, device: torch.device
) -> OutputGradient:
    """The gradient of the output `number` in a layout that the step can take, or what stands for
    none. Raises RuntimeError where there is no such layout."""
    if tangent is None:
        return MissingGradient.of(expected)
    tangent = as_plain_gradient(tangent, number)
    if expected.on_stride_mismatch == "accept" or has_layout(tangent, expected.strides):
        return tangent
    if expected.on_stride_mismatch == "reject" and not repeats_along_strides(
        tangent, expected.strides
    ):
        raise RuntimeError(
            f"the gradient of output {number} arrives with strides {tuple(tangent.stride())}, the "
            f"plan was made for {expected.strides}: plan with the loss (loss=), or lay it out by a "
            f"hook of that output, output.register_hook({_layout_hook(expected)})"
        )
    copied = torch.empty_strided(
        expected.shape, expected.strides, dtype=getattr(torch, expected.dtype), device=device
    )
    return copied.copy_(tangent)


def _layout_hook(expected: OutputGradientSpec) -> str:
    """The text of a function that lays out a gradient as expected."""
    described = torch.empty_strided(expected.shape, expected.strides, device="meta")
    if described.is_contiguous():
        return "torch.Tensor.contiguous"
    call = f"new_empty_strided({expected.shape}, {expected.strides})"
    return f"lambda gradient: gradient.{call}.copy_(gradient)"


def copy_shared_gradients(
    tangents: list[Any], expected: Sequence[OutputGradientSpec | None]
) -> None:
    """Replaces gradients that the step overwrites or sends away by copies, where anybody else has
    hold of them or of their memory: the caller, a hook, another part of the graph. What no copy
    lies like stays as it is: the step only reads it, and sends nothing of it."""
    wanted = [layout for layout in expected if layout is not None]
    for position, layout in enumerate(wanted):
        if layout.overwritten and not _is_unshared(tangents, position):
            tangents[position] = tangents[position].detach().clone()


def _is_unshared(tensors: list[Any], position: int) -> bool:
    """Whether a list alone holds a tensor, and the tensor alone its memory."""
    if isinstance(tensors[position], MissingGradient) or not is_dense(tensors[position]):
        return True
    # What the checking itself holds is what it holds of a tensor just made.
    return tensors[position].untyped_storage().resizable() and (
        _reference_counts(tensors, position) == _reference_counts([torch.empty(1)], 0)
    )


def _reference_counts(tensors: list[Any], position: int) -> tuple[int, int, int]:
    """How often a tensor is held in C++ and in Python, and its storage."""
    storage = torch._C._storage_Use_Count(tensors[position].untyped_storage()._cdata)
    return tensors[position]._use_count(), sys.getrefcount(tensors[position]), storage
