"""Gradients of the largest and the smallest element as eager PyTorch computes them on the CPU.

The capture multiplies the mask of these elements by their share of the gradient, which gives
negative zeros elsewhere if that is negative. Eager writes the share into zeros.
"""

from __future__ import annotations

from typing import Any

import torch

from tightfit.stages.trace.canonicalize.layout import fake_mode_of, run_on_fake_tensors
from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable

aten = torch.ops.aten


def match_eager_extremum_gradients(program: CapturedProgram) -> None:
    """Lets the backward of `x.max()` and `x.min()` write shares of the gradient into zeros."""
    makers = {output: call for call in program.calls for output in call.made()}
    gradients = set(program.tangents.values())
    calls = []
    for call in program.calls:
        if not gradients.isdisjoint(call.inputs()):
            gradients.update(call.made())
        share = _share_of_mask(call, makers)
        if share in gradients:
            assert share is not None
            calls.append(_make_zeros(call, share, program))
            call.target = aten.masked_fill.Tensor
            call.args = (calls[-1].made()[0], call.args[0], share)
            call.forget_inputs()
        calls.append(call)
    program.calls = calls


def _share_of_mask(call: OperatorCall, makers: dict[Variable, OperatorCall]) -> Variable | None:
    """What a call multiplies a mask by, if that is a number divided by the sum of the mask."""
    if call.target is not aten.mul.Tensor or not all(isinstance(x, Variable) for x in call.args):
        return None
    mask, share = call.args
    divided = _made_by(makers, share, aten.div.Tensor)
    extreme = _made_by(makers, mask, aten.logical_or.default)
    if extreme is None or share.fake.dim() or divided is None:
        return None
    summed = _made_by(makers, divided.args[1], aten.sum.default)
    return share if summed is not None and summed.args[0] is mask else None


def _made_by(
    makers: dict[Variable, OperatorCall], value: Any, target: torch._ops.OpOverload
) -> OperatorCall | None:
    """The call of an operator that makes a value, None if another one does."""
    maker = makers.get(value) if isinstance(value, Variable) else None
    return maker if maker is not None and maker.target is target else None


def _make_zeros(call: OperatorCall, share: Variable, program: CapturedProgram) -> OperatorCall:
    """The call that makes the zeros of a gradient."""
    mask = call.args[0]
    result = Variable("intermediate", mask.fake)
    options = {"dtype": share.fake.dtype, "memory_format": torch.contiguous_format}
    made = OperatorCall(
        aten.zeros_like.default, (mask,), options, [result], call.module, call.source
    )
    run_on_fake_tensors(made, fake_mode_of(program))
    return made
