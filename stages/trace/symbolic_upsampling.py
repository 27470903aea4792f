"""`torch.nn.functional.interpolate` on tensors whose sizes are symbols."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tightfit.stages.trace.capture_patches import patch_attribute

_DIMENSIONS = {
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_bicubic2d": 2,
    "upsample_trilinear3d": 3,
    **{f"upsample_nearest{count}d": count for count in (1, 2, 3)},
    **{f"_upsample_nearest_exact{count}d": count for count in (1, 2, 3)},
}
"""Operators that interpolate, with the number of dimensions that they change."""


@contextlib.contextmanager
def patch_upsampling() -> Iterator[None]:
    """Within it operators that interpolate compute their sizes in Python where these are symbols,
    as PyTorch does in C++, which would fix them to those of the sample, and their backwards make
    tensors without memory of such sizes."""
    from torch._subclasses.fake_impls import op_implementations_dict

    backwards = [getattr(torch.ops.aten, f"{name}_backward").default for name in _DIMENSIONS]
    added = [call for call in backwards if call not in op_implementations_dict]
    op_implementations_dict.update(dict.fromkeys(added, _backward_without_memory))
    try:
        with contextlib.ExitStack() as stack:
            for name, count in _DIMENSIONS.items():
                wrap = partial(_wrap_operator, name=name, count=count)
                stack.enter_context(patch_attribute(torch._C._nn, name, wrap))
            yield
    finally:
        for call in added:
            del op_implementations_dict[call]


def _backward_without_memory(mode: Any, _: Any, *args: Any, **__: Any) -> torch.Tensor:
    """The gradient of what was interpolated: its arguments are the gradient of the result, the size
    of that and the own size."""
    gradient, _, size = args[:3]
    with mode:
        made: torch.Tensor = gradient.new_empty(size)
    return made


def _wrap_operator(original: Callable[..., Any], name: str, count: int) -> Callable[..., Any]:
    overload = getattr(torch.ops.aten, name).default

    def upsample(tensor: torch.Tensor, output_size: Any, *rest: Any) -> Any:
        given = tensor.shape[2:]
        known = (*tensor.shape, *(output_size or ()))
        symbolic = any(isinstance(size, torch.SymInt) for size in known)
        factors = rest[-1] if rest else None
        if not symbolic or not (factors is None or isinstance(factors, list | tuple)):
            return original(tensor, output_size, *rest)
        flags = rest[:-1]
        scales = factors or [None] * count
        sizes = output_size or [_scaled_size(*pair) for pair in zip(given, scales, strict=True)]
        return overload(tensor, sizes, *flags, *scales)

    return upsample


def _scaled_size(size: Any, factor: float) -> Any:
    if float(factor).is_integer():
        return size * int(factor)
    return torch.sym_int(size * factor)
