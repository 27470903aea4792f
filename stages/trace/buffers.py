"""Makes the updates of buffers (batch-norm statistics) explicit calls of the forward."""

from __future__ import annotations

import torch

from tightfit.schemas.errors import ModelError
from tightfit.stages.trace.layout import fake_mode_of, run_fake, storage_of
from tightfit.stages.trace.program import Call, Program, Variable

aten = torch.ops.aten

_BATCH_NORM = "aten::_native_batch_norm_legit_functional"
_CHOOSING = "aten::_batch_norm_with_update_functional"
_BATCH_NORM_BACKWARD = ("aten::native_batch_norm_backward", "aten::batch_norm_backward")


def ignores_statistics(call: Call) -> bool:
    """True for batch normalisation in training: what the step uses of its results does not depend
    on the running statistics that it is given."""
    name = call.target._schema.name
    if name in _BATCH_NORM_BACKWARD:
        return call.args[7] is True
    return name == _CHOOSING or (name == _BATCH_NORM and call.args[5] is True)


def place_writes(program: Program) -> None:
    """Adds a `copy_` for each written buffer right after the new value is made, but after the last
    reader of the old one; later readers of the new value in the forward read the buffer.

    The backward reads no written buffer: a later forward may have written it again by then.
    """
    for buffer, new in program.writes:
        _keep_old_value(program, buffer)
        _place_write(program, buffer, new)


def _keep_old_value(program: Program, buffer: Variable) -> None:
    """Where the backward reads what the buffer was before, or the model returns it, lets all
    readers read a copy of it."""
    aliases = _aliases(program, buffer)
    backward = program.calls[program.forward :]
    late = [variable for call in backward for variable in _sensitive_inputs(call)]
    if not any(variable in aliases for variable in [*late, *program.outputs]):
        return
    old = Variable("intermediate", buffer.fake)
    for call in program.calls:
        if not ignores_statistics(call):
            call.replace(buffer, old)
    program.outputs = [old if output is buffer else output for output in program.outputs]
    copy = Call(aten.clone.default, (buffer,), {}, [old])
    mode = fake_mode_of(program)
    run_fake(copy, mode)
    for call in program.calls:
        if any(variable in aliases for variable in call.made()):
            run_fake(call, mode)
    program.calls.insert(0, copy)
    program.forward += 1


def _place_write(program: Program, buffer: Variable, new: Variable) -> None:
    if new.fake.shape != buffer.fake.shape or new.fake.dtype != buffer.fake.dtype:
        raise ModelError(f"the model changes the shape or dtype of its buffer {buffer.path!r}")
    aliases = _aliases(program, buffer)
    position = 0
    for index, call in enumerate(program.calls[: program.forward], start=1):
        if new in call.outputs or any(variable in aliases for variable in _sensitive_inputs(call)):
            position = index
    maker = program.calls[position - 1] if position else None
    copy = Call(
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
            if ignores_statistics(call) or not outlives:
                call.replace(new, buffer)
            if not outlives and any(variable in views for variable in call.made()):
                run_fake(call, mode)
    program.calls.insert(position, copy)
    program.forward += 1


def _outlives_forward(program: Program, new: Variable) -> bool:
    """True where the backward reads the new value of a buffer, or the model returns it."""
    aliases = _aliases(program, new)
    backward = program.calls[program.forward :]
    late = [variable for call in backward for variable in _sensitive_inputs(call)]
    return any(variable in aliases for variable in [*late, *program.outputs])


def _aliases(program: Program, buffer: Variable) -> set[Variable]:
    """The buffer and its views."""
    storage = storage_of(buffer.fake)
    made = (variable for call in program.calls for variable in call.made())
    return {buffer} | {variable for variable in made if storage_of(variable.fake) == storage}


def _sensitive_inputs(call: Call) -> list[Variable]:
    return [] if ignores_statistics(call) or call.writes else call.inputs()
