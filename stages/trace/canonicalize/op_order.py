"""Drops dead calls and orders the rest: the forward, the place of the loss, the backward."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tightfit.stages.torch_utils.operators import draws_random_numbers
from tightfit.stages.trace.canonicalize.layout import fake_mode_of, run_on_fake_tensors, storage_key
from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable
from tightfit.util.errors import ModelError


def order_calls(program: CapturedProgram) -> None:
    """Leaves the calls that matter, in captured order, and sets `program.forward`.

    What the outputs and the buffers need is the forward. What only the backward needs runs in the
    backward, just before its first use there, unless it reads a buffer that the forward writes.
    Random calls all stay, so that the same seed gives the same draws.
    """
    makers = {output: call for call in program.calls for output in call.made()}
    tangents = set(program.tangents.values())
    dependent: set[Variable] = set(tangents)
    late: set[OperatorCall] = set()
    for call in program.calls:
        if any(variable in dependent for variable in call.inputs()):
            dependent.update(call.made())
            late.add(call)
    random = {
        call
        for call in program.calls
        if call not in late and draws_random_numbers(call.target, call.args)
    }
    results = [*program.outputs, *(new for _, new in program.writes)]
    early = _ancestors(makers, results, random)
    needed = _ancestors(makers, [*results, *program.gradient_values()], random)
    written = {buffer for buffer, _ in program.writes}
    early |= _ancestors(
        makers,
        [],
        {call for call in needed - late if any(buffer in written for buffer in call.inputs())},
    )
    forward = [call for call in program.calls if call in early]
    program.forward = len(forward)
    program.calls = forward + _just_in_time(
        [call for call in program.calls if call in needed and call not in early], late, makers
    )


def _ancestors(
    makers: dict[Variable, OperatorCall],
    variables: Iterable[Variable],
    calls: Iterable[OperatorCall],
) -> set[OperatorCall]:
    found: set[OperatorCall] = set()
    pending = [makers[variable] for variable in variables if variable in makers] + list(calls)
    while pending:
        call = pending.pop()
        if call not in found:
            found.add(call)
            pending.extend(makers[variable] for variable in call.inputs() if variable in makers)
    return found


def _just_in_time(
    calls: list[OperatorCall], late: set[OperatorCall], makers: dict[Variable, OperatorCall]
) -> list[OperatorCall]:
    """The calls in order, those that depend on no tangent right before their first reader."""
    waiting = {call for call in calls if call not in late}
    ordered: list[OperatorCall] = []

    def place(call: OperatorCall) -> None:
        for variable in call.inputs():
            maker = makers.get(variable)
            if maker in waiting:
                waiting.remove(maker)
                place(maker)
        ordered.append(call)

    for call in calls:
        if call in late:
            place(call)
    for call in calls:
        if call in waiting:
            waiting.remove(call)
            place(call)
    return ordered


aten = torch.ops.aten

_BATCH_NORM = "aten::_native_batch_norm_legit_functional"
_BATCH_NORM_UPDATE = "aten::_batch_norm_with_update_functional"
_BATCH_NORM_BACKWARD = ("aten::native_batch_norm_backward", "aten::batch_norm_backward")


def ignores_running_stats(call: OperatorCall) -> bool:
    """True for batch normalization in training: what the step uses of its results does not depend
    on the running statistics that it is given."""
    name = call.target._schema.name
    if name in _BATCH_NORM_BACKWARD:
        return call.args[7] is True
    return name == _BATCH_NORM_UPDATE or (name == _BATCH_NORM and call.args[5] is True)


def place_buffer_writes(program: CapturedProgram) -> None:
    """Adds a `copy_` for each written buffer right after the new value is made, but after the last
    reader of the old one; later readers of the new value in the forward read the buffer.

    The backward reads no written buffer: a later forward may have written it again by then.
    """
    for buffer, new in program.writes:
        _keep_old_value(program, buffer)
        _place_write(program, buffer, new)


def _keep_old_value(program: CapturedProgram, buffer: Variable) -> None:
    """Where the backward reads what the buffer was before, or the model returns it, lets all
    readers read a copy of it."""
    aliases = _aliases(program, buffer)
    backward = program.calls[program.forward :]
    late = [variable for call in backward for variable in _sensitive_inputs(call)]
    if not any(variable in aliases for variable in [*late, *program.outputs]):
        return
    old = Variable("intermediate", buffer.fake)
    for call in program.calls:
        if not ignores_running_stats(call):
            call.replace(buffer, old)
    program.outputs = [old if output is buffer else output for output in program.outputs]
    copy = OperatorCall(aten.clone.default, (buffer,), {}, [old])
    mode = fake_mode_of(program)
    run_on_fake_tensors(copy, mode)
    for call in program.calls:
        if any(variable in aliases for variable in call.made()):
            run_on_fake_tensors(call, mode)
    program.calls.insert(0, copy)
    program.forward += 1


def _place_write(program: CapturedProgram, buffer: Variable, new: Variable) -> None:
    if new.fake.shape != buffer.fake.shape or new.fake.dtype != buffer.fake.dtype:
        raise ModelError(f"the model changes the shape or dtype of its buffer {buffer.path!r}")
    aliases = _aliases(program, buffer)
    position = 0
    for index, call in enumerate(program.calls[: program.forward], start=1):
        if new in call.outputs or any(variable in aliases for variable in _sensitive_inputs(call)):
            position = index
    maker = program.calls[position - 1] if position else None
    copy = OperatorCall(
        aten.copy_.default,
        (buffer, new),
        {},
        [],
        maker.module if maker else "",
        maker.source if maker else "",
        [buffer],
    )
    if new.kind == "intermediate":
        outlives = _outlives_forward(program, new)
        views = _aliases(program, new)
        mode = fake_mode_of(program)
        for call in program.calls[position:]:
            if ignores_running_stats(call) or not outlives:
                call.replace(new, buffer)
            if not outlives and any(variable in views for variable in call.made()):
                run_on_fake_tensors(call, mode)
    program.calls.insert(position, copy)
    program.forward += 1


def _outlives_forward(program: CapturedProgram, new: Variable) -> bool:
    """True where the backward reads the new value of a buffer, or the model returns it."""
    aliases = _aliases(program, new)
    backward = program.calls[program.forward :]
    late = [variable for call in backward for variable in _sensitive_inputs(call)]
    return any(variable in aliases for variable in [*late, *program.outputs])


def _aliases(program: CapturedProgram, buffer: Variable) -> set[Variable]:
    """The buffer and its views."""
    storage = storage_key(buffer.fake)
    made = (variable for call in program.calls for variable in call.made())
    return {buffer} | {variable for variable in made if storage_key(variable.fake) == storage}


def _sensitive_inputs(call: OperatorCall) -> list[Variable]:
    return [] if ignores_running_stats(call) or call.writes else call.inputs()
