"""Dropout as eager PyTorch computes it on the CPU.

The capture has `native_dropout`, which scales by 1 / (1 - p) in double precision. Eager dropout on
the CPU divides ones by 1 - p in the tensor's own precision: another number for some p. Where p is 1
it multiplies by zero and draws nothing.
"""

from __future__ import annotations

import torch

from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable
from tightfit.stages.trace.random_states import eager_dropout_scale

aten = torch.ops.aten


def match_eager_dropout(program: CapturedProgram) -> None:
    """Gives each dropout of a CPU program the scale of the eager one, backward and forward."""
    scales: dict[Variable | None, float] = {}
    nothing: set[Variable | None] = set()
    calls = []
    for call in program.calls:
        if call.target is aten.native_dropout.default and _drops_everything(call):
            nothing.add(call.outputs[1])
            calls.extend(_drop_everything(call))
            continue
        if call.target is aten.native_dropout_backward.default and call.args[1] in nothing:
            calls.append(_multiply_by_zero(call, call.args[0], call.outputs[0]))
            continue
        if call.target is aten.native_dropout.default and _is_cpu_dropout(call):
            dtype, p = call.args[0].fake.dtype, call.args[1]
            scale = eager_dropout_scale(p, dtype)
            scales[call.outputs[1]] = scale
            if scale != torch.tensor(1 / (1 - p), dtype=dtype).item():
                calls.extend(_decompose_dropout(call, scale))
                continue
        elif call.target is aten.native_dropout_backward.default and call.args[1] in scales:
            call.args = (*call.args[:2], scales[call.args[1]])
        calls.append(call)
    program.calls = calls


def _is_cpu_dropout(call: OperatorCall) -> bool:
    return call.args[2] is True and 0 < call.args[1] < 1 and call.args[0].fake.is_cpu


def _drops_everything(call: OperatorCall) -> bool:
    return call.args[2] is True and call.args[1] == 1 and call.args[0].fake.is_cpu


def _drop_everything(call: OperatorCall) -> list[OperatorCall]:
    """Dropout of everything: a multiplication by zero, and a mask, which may be asked for."""
    source = call.args[0]
    options = {"dtype": torch.bool, "memory_format": torch.contiguous_format}
    mask = OperatorCall(aten.zeros_like.default, (source,), options, call.outputs[1:])
    return [_multiply_by_zero(call, source, call.outputs[0]), mask]


def _multiply_by_zero(
    call: OperatorCall, source: Variable, result: Variable | None
) -> OperatorCall:
    return OperatorCall(aten.mul.Tensor, (source, 0.0), {}, [result], call.module, call.source)


def _decompose_dropout(call: OperatorCall, scale: float) -> list[OperatorCall]:
    """The mask, drawn as before, and two multiplications."""
    source, p, _ = call.args
    result, mask = call.outputs
    assert result is not None and mask is not None
    empty = Variable("intermediate", mask.fake)
    masked = Variable("intermediate", result.fake)
    options = {"dtype": torch.bool, "memory_format": torch.contiguous_format}
    where = (call.module, call.source)
    return [
        OperatorCall(aten.empty_like.default, (source,), options, [empty], *where),
        OperatorCall(aten.bernoulli.p, (empty, 1 - p), {}, [mask], *where),
        OperatorCall(aten.mul.Tensor, (source, mask), {}, [masked], *where),
        OperatorCall(aten.mul.Tensor, (masked, scale), {}, [result], *where),
    ]


_aten = torch.ops.aten

BATCH_NORM_TRAINING = _aten._native_batch_norm_legit_functional.default
BATCH_NORM_EVALUATION = _aten._native_batch_norm_legit_no_training.default
BATCH_NORM_BACKWARD = _aten.native_batch_norm_backward.default


def use_cudnn_batch_norm(program: CapturedProgram) -> None:
    """Lets a step call cuDNN's batch norm where eager does, forward and backward."""
    left: dict[Variable | None, Variable] = {}
    for call in program.calls:
        if (
            call.target is BATCH_NORM_TRAINING
            and call.args[5] is True
            and _selects_cudnn(call, training=True)
        ):
            reserve = _lower_training_norm(call)
            left |= {kept: reserve for kept in call.outputs[1:3] if kept is not None}
        elif call.target is BATCH_NORM_EVALUATION and _selects_cudnn(call, training=False):
            _lower_evaluation_norm(call)
        elif call.target is BATCH_NORM_BACKWARD and call.args[5] in left:
            *operands, _, epsilon, mask = call.args
            call.target = _aten.batch_norm_backward.default
            call.args = (*operands, True, epsilon, mask, left[call.args[5]])
            call.forget_inputs()


def _selects_cudnn(call: OperatorCall, training: bool) -> bool:
    """Whether eager takes cuDNN for a batch norm: never without weights."""
    operands = [operand.fake for operand in call.args[:5] if isinstance(operand, Variable)]
    if len(operands) < 5 or not torch.backends.cudnn.enabled:
        return False
    chosen = torch._C._select_batch_norm_backend(*operands, training, call.args[-1])
    return chosen.name == "Cudnn"


def _lower_training_norm(call: OperatorCall) -> Variable:
    """Lets a call choose its kernel, and returns what it leaves for its backward."""
    *operands, _, momentum, epsilon = call.args
    result, mean, deviation, *statistics = call.outputs
    assert result is not None
    reserve = Variable("intermediate", result.fake)
    call.target = _aten._batch_norm_with_update_functional.default
    call.args = (*operands, momentum, epsilon)
    call.outputs = [result, mean, deviation, reserve, *statistics]
    call.forget_inputs()
    return reserve


def _lower_evaluation_norm(call: OperatorCall) -> None:
    """Lets a call use cuDNN's kernel."""
    *operands, momentum, epsilon = call.args
    call.target = _aten.cudnn_batch_norm.default
    call.args = (*operands, False, momentum, epsilon)
    call.outputs = [*call.outputs, None]
    call.forget_inputs()
