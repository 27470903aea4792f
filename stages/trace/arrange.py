"""Drops dead calls and orders the rest: the forward, the place of the loss, the backward."""

from __future__ import annotations

from collections.abc import Iterable

from tightfit.stages.device.operators import is_random
from tightfit.stages.trace.program import Call, Program, Variable


def arrange(program: Program) -> None:
    """Leaves the calls that matter, in captured order, and sets `program.forward`.

    What the outputs and the buffers need is the forward. What only the backward needs runs in the
    backward, just before its first use there, unless it reads a buffer that the forward writes.
    Random calls all stay, so that the same seed gives the same draws.
    """
    makers = {output: call for call in program.calls for output in call.made()}
    tangents = set(program.tangents.values())
    dependent: set[Variable] = set(tangents)
    late: set[Call] = set()
    for call in program.calls:
        if any(variable in dependent for variable in call.inputs()):
            dependent.update(call.made())
            late.add(call)
    random = {
        call for call in program.calls if call not in late and is_random(call.target, call.args)
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
    makers: dict[Variable, Call], variables: Iterable[Variable], calls: Iterable[Call]
) -> set[Call]:
    found: set[Call] = set()
    pending = [makers[variable] for variable in variables if variable in makers] + list(calls)
    while pending:
        call = pending.pop()
        if call not in found:
            found.add(call)
            pending.extend(makers[variable] for variable in call.inputs() if variable in makers)
    return found


def _just_in_time(calls: list[Call], late: set[Call], makers: dict[Variable, Call]) -> list[Call]:
    """The calls in order, those that depend on no tangent right before their first reader."""
    waiting = {call for call in calls if call not in late}
    ordered: list[Call] = []

    def place(call: Call) -> None:
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
