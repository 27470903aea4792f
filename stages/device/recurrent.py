"""The recurrent layer of oneDNN as training runs it.

The operator leaves its workspace, which its backward reads, only where gradients are enabled;
and its fake version leaves an empty one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

LAYER = "aten.mkldnn_rnn_layer.default"
BACKWARD = "aten.mkldnn_rnn_layer_backward.default"
"""Gives the gradients of both biases a storage each, where its fake version gives one tensor."""
WORKSPACE = 3
"""The number of the result that is the workspace."""


def recurrent_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """The results of the layer with its workspace; autograd does not see the call."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


def workspace_bytes(layer: tuple[Any, ...]) -> int:
    """The size of the workspace that a call of the layer leaves, found by running it on zeros.

    `layer` are its arguments; of tensors, only shapes, strides and dtypes are read.
    """

    def zeros(argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        shape, stride = tuple(argument.shape), argument.stride()
        return torch.empty_strided(shape, stride, dtype=argument.dtype).zero_()

    with _disable_current_modes():
        results = recurrent_layer(*[zeros(argument) for argument in layer])
    return results[WORKSPACE].untyped_storage().nbytes()
