"""The dtypes of what normalisations give on the CPU; their fake versions say those of CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_FORWARD = (
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_functional",
    "aten::_native_batch_norm_legit_no_training",
    "aten::native_batch_norm",
    "aten::native_group_norm",
    "aten::native_layer_norm",
)
_RUNNING = "aten::_native_batch_norm_legit_functional"
_BACKWARD = "aten::native_group_norm_backward"


def true_dtypes(name: str, args: Sequence[Any]) -> dict[int, torch.dtype]:
    """The dtypes of some results, by their number, of an operator called with `args`.

    Means and deviations are in single precision where operands of several precisions meet, else
    in the input's; running statistics keep their own (ATen, native/cpu/mixed_data_type.h).
    """
    if name not in (*_FORWARD, _BACKWARD) or args[0].device.type != "cpu":
        return {}
    tensors = [leaf for leaf in args if isinstance(leaf, torch.Tensor)]
    if name == _BACKWARD:
        return {0: args[1].dtype}
    mixed = len({tensor.dtype for tensor in tensors}) > 1
    kept = torch.float32 if mixed else tensors[0].dtype
    running = {3: args[3].dtype, 4: args[4].dtype} if name == _RUNNING else {}
    return {1: kept, 2: kept, **running}
