"""Convolutions on tensors whose channels are last in memory, which many kernels take faster.

What convolutions read is copied into that form where it has another one; what comes after them
keeps it. Outputs of the model lie as they do without.
"""

from __future__ import annotations

import torch

from stages.trace.gradients import copy_calls
from stages.trace.layout import Layout, fake_mode_of, run_fake, storage_of
from stages.trace.program import Call, Program

aten = torch.ops.aten

_OPERANDS = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1)}
"""What convolutions read beside weights, by its place among the arguments."""
_FORMS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The form by the number of dimensions."""


def may_be_last(program: Program) -> bool:
    """Whether a program has convolutions of two or three dimensions, and none of its outputs is in
    the memory of another one or of what the model is given."""
    fixed = [*program.fixed, *program.inputs.values(), *program.outputs]
    storages = [storage_of(variable.fake) for variable in dict.fromkeys(fixed)]
    convolves = any(
        call.target in _OPERANDS and call.args[0].fake.dim() in _FORMS for call in program.calls
    )
    return convolves and len(set(storages)) == len(storages)


class ChannelsLast(Layout):
    """Runs calls as `Layout` does, with convolutions on channels-last operands. To be made where
    the program was laid out without."""

    def __init__(self, program: Program) -> None:
        super().__init__(fake_mode_of(program))
        self.own = {variable: variable.fake for variable in program.outputs}

    def copies(self, call: Call) -> list[Call]:
        """Those that any layout needs, and operands of convolutions in the form that they want."""
        made = super().copies(call)
        for place in _OPERANDS.get(call.target, ()):
            operand = call.args[place].fake
            form = _FORMS.get(operand.dim())
            if form is not None and not operand.is_contiguous(memory_format=form):
                made.append(self.copy_operand(call, place, form))
        return made

    def restored(self, program: Program) -> list[Call]:
        """Copies of the outputs that lie otherwise than the model's own."""
        made: list[Call] = []
        for number, output in enumerate(program.outputs):
            like = self.own[output]
            if output.fake.stride() == like.stride():
                continue
            calls = copy_calls(output, like)
            for call in calls:
                run_fake(call, self.mode)
            made += calls
            program.outputs[number] = calls[-1].made()[0]
        return made
