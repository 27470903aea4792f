"""Convolutions on tensors whose channels are last in memory, which many kernels take faster.

What convolutions read is copied into that form where it has another one. What comes after them
keeps it through operators that are known to take any layout; all others read what they do without.
Numbers are drawn in the order of memory. What autograd does before it calls an operator, such as a
copy of a gradient in its operand's form, is not in a graph. Outputs of the model lie as they do
without.
"""

from __future__ import annotations

import torch

from tightfit.schemas.groups import POINTWISE, VIEWS
from tightfit.stages.trace.gradients import copy_calls
from tightfit.stages.trace.layout import Layout, fake_mode_of, run_fake, storage_of
from tightfit.stages.trace.program import Call, Program

aten = torch.ops.aten

_OPERANDS = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1)}
"""What convolutions read beside weights, by its place among the arguments."""
_FREE = (
    POINTWISE
    | VIEWS
    | frozenset(
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d "
        "_adaptive_avg_pool3d_backward _native_batch_norm_legit_functional avg_pool2d "
        "avg_pool2d_backward cat copy_ max_pool2d_with_indices max_pool2d_with_indices_backward "
        "mean native_batch_norm_backward sum".split()
    )
)
"""Operators that take any layout."""
_NORM, _NORM_BACKWARD = aten.native_group_norm.default, aten.native_group_norm_backward.default
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
        made = [output for call in program.calls for output in call.made()]
        given = [*program.fixed, *program.inputs.values(), *program.tangents.values()]
        self.plain = {variable: variable.fake for variable in (*given, *made)}

    def copies(self, call: Call) -> list[Call]:
        """The copies that any layout needs, operands of convolutions in the form that they want,
        and operands of what does not take any layout as they are without."""
        found = super().copies(call)
        if call.target in _OPERANDS:
            for place in _OPERANDS[call.target]:
                form = _FORMS.get(call.args[place].fake.dim())
                found += self.formed(call, place, form)
        elif call.target == _NORM_BACKWARD and _form_of(call.args[1].fake) is not None:
            found += self.formed(call, 0, _form_of(call.args[1].fake))
        elif call.target == _NORM and _form_of(call.args[0].fake) is not None:
            return found
        elif call.target._schema.name.removeprefix("aten::") not in _FREE:
            found += self.as_without(call)
        return found

    def formed(self, call: Call, place: int, form: torch.memory_format | None) -> list[Call]:
        """The copy of an operand in a form, where it has another one."""
        operand = call.args[place].fake
        if form is None or operand.is_contiguous(memory_format=form):
            return []
        return [self.copy_operand(call, place, form)]

    def as_without(self, call: Call) -> list[Call]:
        """Copies of operands that lie otherwise than they do without."""
        copies = []
        for operand in call.inputs():
            like = self.plain.get(operand)
            if like is not None and like.stride() != operand.fake.stride():
                calls = copy_calls(operand, like)
                for each in calls:
                    run_fake(each, self.mode)
                call.replace(operand, calls[-1].made()[0])
                copies += calls
        return copies

    def restored(self, program: Program) -> list[Call]:
        """Copies of the outputs that lie otherwise than the model's own."""
        copies: list[Call] = []
        for number, output in enumerate(program.outputs):
            like = self.plain[output]
            if output.fake.stride() == like.stride():
                continue
            calls = copy_calls(output, like)
            for call in calls:
                run_fake(call, self.mode)
            copies += calls
            program.outputs[number] = calls[-1].made()[0]
        return copies


def _form_of(tensor: torch.Tensor) -> torch.memory_format | None:
    """The form in which a tensor is contiguous, None where it is in none."""
    forms = (torch.contiguous_format, _FORMS.get(tensor.dim()))
    known = (form for form in forms if form is not None)
    return next((form for form in known if tensor.is_contiguous(memory_format=form)), None)
