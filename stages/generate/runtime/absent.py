"""Gradients that did not arrive: what depends on them alone is absent too.

The backward is linear in the gradients of the outputs. An operator that is given an absent one,
and no other gradient, gives an absent result and does not run. Where several gradients meet, a sum
is what is there, and any other operator sees zeros for what is not, as in autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .facts import Tangent
from .strides import has_layout, is_dense, is_spread, laid_out


class Absent:
    """Stands for a tensor that is not there; `meta` has its shape, strides and dtype."""

    def __init__(self, meta: torch.Tensor) -> None:
        self.meta = meta

    @classmethod
    def of(cls, tangent: Tangent) -> Absent:
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
        return pytree.tree_map_only(torch.Tensor, cls, _described(operator, args, kwargs or {}))


def joining(operator: Any, gradients: int, loose: bool, *args: Any, **kwargs: Any) -> Any:
    """What an operator gives, of whose operands so many are gradients. Where one alone of a sum is
    there, the result has the strides of that one, as in eager; raises RuntimeError where these are
    not the planned ones and what follows is not `loose` about it."""
    leaves = pytree.tree_leaves((args, kwargs))
    absent = {id(leaf) for leaf in leaves if isinstance(leaf, Absent)}
    if len(absent) in (0, gradients):
        return operator(*args, **kwargs)
    present = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if operator._schema.name in ("aten::add", "aten::add_"):
        return _only(present, _described(operator, args, kwargs), loose)
    zeros = {
        id(leaf): torch.zeros_like(leaf.meta, device=present[0].device)
        for leaf in leaves
        if isinstance(leaf, Absent)
    }
    args, kwargs = pytree.tree_map_only(Absent, lambda leaf: zeros[id(leaf)], (args, kwargs))
    return operator(*args, **kwargs)


def for_view(gradient: Any, shape: Sequence[int], apart: bool = False) -> Any:
    """The gradient where it has a view of this shape, or a copy of it where the result is to be
    `apart` and a copy lies alike; else a contiguous copy, as a reshape of eager makes one."""
    if isinstance(gradient, Absent):
        return torch.ops.aten.clone.default(gradient, memory_format=torch.contiguous_format)
    reshaped = gradient.reshape(shape)
    if reshaped.data_ptr() == gradient.data_ptr():
        return gradient.clone() if apart and is_dense(gradient) else gradient
    return reshaped.view(gradient.shape)


def _only(present: list[torch.Tensor], result: torch.Tensor, loose: bool) -> torch.Tensor:
    """The one operand of a sum that is there: itself where the sum overwrites it, else a copy."""
    if len(present) > 1:
        return present[-1]
    [one] = present
    spread = is_spread(one, result.stride())
    if has_layout(one, result.stride()) or (spread and not loose):
        planned = torch.empty_strided(
            result.shape, result.stride(), dtype=result.dtype, device=one.device
        )
        return planned.copy_(one)
    copy = one.to(result.dtype, copy=True)
    if loose and not has_layout(copy, one.stride()):
        copy = laid_out(one.to(result.dtype), one.stride())
    if not loose:
        raise RuntimeError(
            f"only some of the outputs have a gradient, which comes with strides {one.stride()} "
            f"where the plan was made for {result.stride()}: let all outputs take part in the "
            "loss, as by adding 0.0 * output.sum(), or plan with the loss (loss=)"
        )
    return copy


def _described(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result on the meta device, where nothing is computed."""
    seen: dict[int, torch.Tensor] = {}

    def described(leaf: Any) -> Any:
        if isinstance(leaf, Absent):
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
