"""Convolutions on tensors whose channels are last in memory, which many kernels take faster.

What convolutions read is copied into that form where it has another one. What comes after them
keeps it through operators that are known to take any layout; all others read what they do without.
Numbers are drawn in the order of memory. What autograd does before it calls an operator, such as a
copy of a gradient in its operand's form, is not in a graph. Outputs of the model lie as they do
without.
"""

from __future__ import annotations

import torch

from tightfit.schemas.graph.fused_groups import POINTWISE_OPS, VIEW_OPS
from tightfit.stages.trace.canonicalize.gradients import layout_copy_calls
from tightfit.stages.trace.canonicalize.layout import (
    LayoutPropagator,
    fake_mode_of,
    run_on_fake_tensors,
    storage_key,
)
from tightfit.stages.trace.program import CapturedProgram, OperatorCall

aten = torch.ops.aten

_CONVOLUTION_OPERANDS = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1)}
"""What convolutions read beside weights, by its place among the arguments."""
_LAYOUT_AGNOSTIC = (
    POINTWISE_OPS
    | VIEW_OPS
    | frozenset(
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d "
        "_adaptive_avg_pool3d_backward _native_batch_norm_legit_functional avg_pool2d "
        "avg_pool2d_backward cat copy_ max_pool2d_with_indices max_pool2d_with_indices_backward "
        "mean native_batch_norm_backward sum".split()
    )
)
"""Operators that take any layout."""
_NORM, _NORM_BACKWARD = aten.native_group_norm.default, aten.native_group_norm_backward.default
_CHANNELS_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The form by the number of dimensions."""


def can_use_channels_last(program: CapturedProgram) -> bool:
    """Whether a program has convolutions of two or three dimensions, and none of its outputs is in
    the memory of another one or of what the model is given."""
    fixed = [*program.fixed, *program.inputs.values(), *program.outputs]
    storages = [storage_key(variable.fake) for variable in dict.fromkeys(fixed)]
    convolves = any(
        call.target in _CONVOLUTION_OPERANDS and call.args[0].fake.dim() in _CHANNELS_LAST_FORMATS
        for call in program.calls
    )
    return convolves and len(set(storages)) == len(storages)


class ChannelsLastPropagator(LayoutPropagator):
    """Runs calls as `Layout` does, with convolutions on channels-last operands. To be made where
    the program was laid out without."""

    def __init__(self, program: CapturedProgram) -> None:
        super().__init__(fake_mode_of(program))
        made = [output for call in program.calls for output in call.made()]
        given = [*program.fixed, *program.inputs.values(), *program.tangents.values()]
        self.plain = {variable: variable.fake for variable in (*given, *made)}

    def copies(self, call: OperatorCall) -> list[OperatorCall]:
        """The copies that any layout needs, operands of convolutions in the form that they want,
        and operands of what does not take any layout as they are without."""
        found = super().copies(call)
        if call.target in _CONVOLUTION_OPERANDS:
            for place in _CONVOLUTION_OPERANDS[call.target]:
                form = _CHANNELS_LAST_FORMATS.get(call.args[place].fake.dim())
                found += self.format_operand(call, place, form)
        elif call.target == _NORM_BACKWARD and _memory_format_of(call.args[1].fake) is not None:
            found += self.format_operand(call, 0, _memory_format_of(call.args[1].fake))
        elif call.target == _NORM and _memory_format_of(call.args[0].fake) is not None:
            return found
        elif call.target._schema.name.removeprefix("aten::") not in _LAYOUT_AGNOSTIC:
            found += self.restore_plain_layout(call)
        return found

    def format_operand(
        self, call: OperatorCall, place: int, form: torch.memory_format | None
    ) -> list[OperatorCall]:
        """The copy of an operand in a form, where it has another one."""
        operand = call.args[place].fake
        if form is None or operand.is_contiguous(memory_format=form):
            return []
        return [self.copy_operand(call, place, form)]

    def restore_plain_layout(self, call: OperatorCall) -> list[OperatorCall]:
        """Copies of operands that lie otherwise than they do without."""
        copies = []
        for operand in call.inputs():
            like = self.plain.get(operand)
            if like is not None and like.stride() != operand.fake.stride():
                calls = layout_copy_calls(operand, like)
                for each in calls:
                    run_on_fake_tensors(each, self.mode)
                call.replace(operand, calls[-1].made()[0])
                copies += calls
        return copies

    def restore_outputs(self, program: CapturedProgram) -> list[OperatorCall]:
        """Copies of the outputs that lie otherwise than the model's own."""
        copies: list[OperatorCall] = []
        for number, output in enumerate(program.outputs):
            like = self.plain[output]
            if output.fake.stride() == like.stride():
                continue
            calls = layout_copy_calls(output, like)
            for call in calls:
                run_on_fake_tensors(call, self.mode)
            copies += calls
            program.outputs[number] = calls[-1].made()[0]
        return copies


def _memory_format_of(tensor: torch.Tensor) -> torch.memory_format | None:
    """The form in which a tensor is contiguous, None where it is in none."""
    forms = (torch.contiguous_format, _CHANNELS_LAST_FORMATS.get(tensor.dim()))
    known = (form for form in forms if form is not None)
    return next((form for form in known if tensor.is_contiguous(memory_format=form)), None)
