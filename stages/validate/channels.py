"""Eager whose convolutions run on channels-last tensors, as those of a fused graph do.

ATen's kernels for such tensors round otherwise than those for contiguous ones: batch norm, for
one, sums in another order, and is many times further from exact numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tightfit.schemas.graph import Graph

_FORMS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The form by the number of dimensions."""
_CONVOLUTIONS = {
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    torch.convolution,
}


class ChannelsLast(TorchFunctionMode):
    """Within it convolutions of two and three dimensions read channels-last copies, and what comes
    after them lies as ATen lets it. A view that such a tensor does not have is a copy."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _CONVOLUTIONS:
            args = tuple(_last(leaf) for leaf in args)
            return function(*args, **{name: _last(leaf) for name, leaf in (kwargs or {}).items()})
        if function is Tensor.view and not kwargs and torch.dtype not in map(type, args):
            return Tensor.reshape(*args)
        return function(*args, **(kwargs or {}))


def convolves_last(graph: Graph) -> bool:
    """Whether a convolution of a graph reads a tensor that is channels last and not contiguous."""
    return any(
        _is_last(graph.values[value].shape, graph.values[value].strides)
        for op in graph.ops
        if op.target == "aten.convolution.default"
        for value in op.inputs
    )


def _is_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    form = _FORMS.get(len(shape))
    if form is None:
        return False
    like = torch.empty_strided(shape, strides, device="meta")
    return like.is_contiguous(memory_format=form) and not like.is_contiguous()


def _last(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.dim() not in _FORMS:
        return leaf
    return leaf.contiguous(memory_format=_FORMS[leaf.dim()])
