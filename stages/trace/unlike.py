"""Calls that eager answers in another way on true numbers than a capture shows."""

from __future__ import annotations

import re
from typing import Any

import torch

from tightfit.schemas.errors import ModelError

_CAST_INSIDE = ("affine_grid", "affine_grid_generator", "bilinear", "linalg_pinv", "pinv")
"""What multiplies matrices inside one operator, where eager's autocast casts and a step's does
not."""

_LAYOUT = re.compile(
    "to_mkldnn|to_sparse(_csr|_csc|_bsr|_bsc)?|sparse_(coo|csr|csc|bsr|bsc|compressed)_tensor"
)
"""What makes tensors that are not strided; on tensors without memory, PyTorch ends the process at
some of them."""

_UNSEEN: dict[Any, tuple[str, str]] = {
    torch.Tensor.data.__set__: (  # type: ignore[attr-defined]
        "sets .data of a tensor",
        "set it between steps, or compute with a new tensor",
    ),
    torch.Tensor.retain_grad: (
        "calls retain_grad() on a tensor",
        "call it on what the model returns",
    ),
}
"""What a capture does not show, and what to do instead."""

_GRAD: Any = torch.Tensor.grad
_KEPT = {_GRAD.__get__: "reads", _GRAD.__set__: "sets", _GRAD.__delete__: "sets"}
"""What a forward does to the gradient that a tensor has from another step."""


def check_call(
    label: str, function: Any, args: tuple[Any, ...], place: str, itself: bool = False
) -> None:
    """Raises ModelError where a plan of a call, at the "file:line" `place`, would give other
    numbers than eager. `itself` is true where that line is the caller, and not PyTorch."""
    name = getattr(function, "__name__", "")
    tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    if tensor is None:
        return
    at = f" at {place}" if place else ""
    if name == "prod" and tensor.requires_grad and torch.is_grad_enabled():
        raise ModelError(
            f"{label}: the backward of prod(){at} looks for zeros in the data, which a plan "
            "cannot do: multiply the parts with each other, or use cumprod() and its last element"
        )
    if _LAYOUT.fullmatch(name):
        raise ModelError(
            f"{label}: {name}(){at} makes a tensor that is not strided, which a plan does not "
            "hold: compute with dense tensors"
        )
    if function in _UNSEEN and place:
        does, instead = _UNSEEN[function]
        raise ModelError(f"{label}: the forward {does}{at}, which a plan would not do: {instead}")
    if function in _KEPT and itself:
        raise ModelError(
            f"{label}: the forward {_KEPT[function]} .grad of a tensor{at}, which a plan would not "
            "do: do so between steps, or keep what it needs in a buffer"
        )
    if name in _CAST_INSIDE and torch.is_autocast_enabled(tensor.device.type):
        raise ModelError(
            f"{label}: {name}(){at} runs under autocast, which casts inside it where a plan does "
            "not follow: call it in a region with torch.autocast(..., enabled=False)"
        )
