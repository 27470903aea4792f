"""Batch norm by the kernels that eager takes on a GPU.

The capture has PyTorch's own batch norm, also where eager calls cuDNN, whose results have other
bits. `_batch_norm_with_update_functional` and `batch_norm_backward` choose between the two as eager
does; what cuDNN's forward leaves for its backward is one more value of theirs. In evaluation eager
calls `cudnn_batch_norm`, which then changes nothing.
"""

from __future__ import annotations

import torch

from tightfit.stages.trace.program import Call, Program, Variable

aten = torch.ops.aten

TRAINING = aten._native_batch_norm_legit_functional.default
EVALUATION = aten._native_batch_norm_legit_no_training.default
BACKWARD = aten.native_batch_norm_backward.default


def library_norms(program: Program) -> None:
    """Lets a step call cuDNN's batch norm where eager does, forward and backward."""
    left: dict[Variable | None, Variable] = {}
    for call in program.calls:
        if call.target is TRAINING and call.args[5] is True and _is_cudnn(call, training=True):
            reserve = _train(call)
            left |= {kept: reserve for kept in call.outputs[1:3] if kept is not None}
        elif call.target is EVALUATION and _is_cudnn(call, training=False):
            _evaluate(call)
        elif call.target is BACKWARD and call.args[5] in left:
            *operands, _, epsilon, mask = call.args
            call.target = aten.batch_norm_backward.default
            call.args = (*operands, True, epsilon, mask, left[call.args[5]])
            call.forget_inputs()


def _is_cudnn(call: Call, training: bool) -> bool:
    """Whether eager takes cuDNN for a batch norm: never without weights."""
    operands = [operand.fake for operand in call.args[:5] if isinstance(operand, Variable)]
    if len(operands) < 5 or not torch.backends.cudnn.enabled:
        return False
    chosen = torch._C._select_batch_norm_backend(*operands, training, call.args[-1])
    return chosen.name == "Cudnn"


def _train(call: Call) -> Variable:
    """Lets a call choose its kernel, and returns what it leaves for its backward."""
    *operands, _, momentum, epsilon = call.args
    result, mean, deviation, *statistics = call.outputs
    assert result is not None
    reserve = Variable("intermediate", result.fake)
    call.target = aten._batch_norm_with_update_functional.default
    call.args = (*operands, momentum, epsilon)
    call.outputs = [result, mean, deviation, reserve, *statistics]
    call.forget_inputs()
    return reserve


def _evaluate(call: Call) -> None:
    """Lets a call use cuDNN's kernel."""
    *operands, momentum, epsilon = call.args
    call.target = aten.cudnn_batch_norm.default
    call.args = (*operands, False, momentum, epsilon)
    call.outputs = [*call.outputs, None]
    call.forget_inputs()
