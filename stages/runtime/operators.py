"""Operators that are not PyTorch's own, which a module of the user's registers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .mismatch import PlanMismatch


def custom_operator(target: str) -> Any:
    """The operator that "namespace.name.overload" names; raises PlanMismatch where none is
    registered."""
    found: Any = torch.ops
    try:
        for name in target.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        raise PlanMismatch(
            f"the operator {target} is not registered here: import the module that registers it "
            "before the plan is loaded"
        ) from error
    return found


def recompute_batch_norm(
    operand: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor
) -> Tensor:
    """The first output of a batch norm in training, from its operand and its batch statistics.

    The scale and shift of each channel are found as the operator finds them, and applied by the
    operator itself: with a mean of zero and a variance of one it changes neither. Bit for bit
    the first run's on the CPU.
    """
    scale = invstd * weight
    shift = torch.addcmul(bias, mean, scale, value=-1)
    zero, one = torch.zeros_like(mean), torch.ones_like(mean)
    return torch.native_batch_norm(operand, scale, shift, zero, one, False, 0.0, 0.0)[0]


RNN_LAYER = "aten.mkldnn_rnn_layer.default"
RNN_BACKWARD = "aten.mkldnn_rnn_layer_backward.default"
"""Gives the gradients of both biases a storage each, where its fake version gives one tensor."""
RNN_WORKSPACE = 3
"""The number of the result that is the workspace."""


def run_rnn_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """The results of the layer with its workspace; autograd does not see the call."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


def rnn_workspace_bytes(layer: tuple[Any, ...]) -> int:
    """The size of the workspace that a call of the layer leaves, found by running it on zeros.

    `layer` are its arguments; of tensors, only shapes, strides and dtypes are read.
    """

    def zeros(argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        shape, stride = tuple(argument.shape), argument.stride()
        return torch.empty_strided(shape, stride, dtype=argument.dtype).zero_()

    with _disable_current_modes():
        results = run_rnn_layer(*[zeros(argument) for argument in layer])
    return results[RNN_WORKSPACE].untyped_storage().nbytes()
