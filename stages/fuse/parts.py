"""Parts of a body: what makes one output again from inputs and from other outputs.

A second run of a group need not make all of it. With mean and reciprocal deviation at hand a layer
norm is a scale and a shift: the reductions are left out. What a part computes are the body's own
calls, but for norms whose statistics are given: they are opened into what is left of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tightfit.schemas.arguments import argument_values, decode_arguments, encode_arguments
from tightfit.schemas.graph import NONE
from tightfit.schemas.groups import Body, GroupCall, Leaf

_LAYER_NORM = "aten.native_layer_norm.default"
STATISTICS = 16
"""Outputs of so many times fewer bytes than the one that is made again are always read."""


@dataclass(frozen=True)
class Part:
    """A body that makes the output `output` of another one. `reads` are, for each of its inputs,
    the number of an input of that one or, counted on from these, of an output."""

    output: int
    reads: list[int]
    body: Body


def parts_of(body: Body, output: int, sizes: Iterable[int]) -> list[Part]:
    """The parts that make an output again: from all other outputs that it depends on, and from the
    inputs and the small outputs alone. `sizes` are the bytes of the outputs. Empty where that is
    the whole body."""
    size = [*sizes]
    others = [number for number in range(len(body.outputs)) if number != output]
    small = {number for number in others if size[number] * STATISTICS <= size[output]}
    found: dict[tuple[int, ...], Part] = {}
    for given in (set(others), small):
        part = _part(body, output, given)
        if part is not None:
            found.setdefault(tuple(part.reads), part)
    return [*found.values()]


def _part(body: Body, output: int, given: Collection[int]) -> Part | None:
    """The part that makes an output from inputs and those outputs that are given, None where that
    is the whole body."""
    there = {body.outputs[number]: len(body.inputs) + number for number in given}
    calls = [each for call in body.calls for each in _opened(call, there, body)]
    needed, wanted = [], {body.outputs[output]}
    for call in reversed(calls):
        made = set(call.outputs) - {NONE}
        if not made.isdisjoint(wanted):
            needed.append(call)
            wanted |= {value for value in _read_by(call) if value not in there}
    if len(needed) == len(body.calls) and len(body.outputs) == 1:
        return None
    return _written(body, output, needed[::-1], there)


def _written(
    body: Body, output: int, calls: Collection[GroupCall], there: Mapping[int, int]
) -> Part:
    """The body of some calls, in their order, its values counted anew."""
    made = {value for call in calls for value in call.outputs if value not in there}
    reads = [
        value
        for value in dict.fromkeys(value for call in calls for value in _read_by(call))
        if value not in made
    ]
    numbers = {value: number for number, value in enumerate(reads)} | {NONE: NONE}
    renamed = []
    for call in calls:
        args, kwargs = _renamed(decode_arguments(call.arguments), numbers)
        outputs = []
        for value in call.outputs:
            kept = value != NONE and value not in there
            if kept:
                numbers[value] = len(numbers) - 1
            outputs.append(numbers[value] if kept else NONE)
        renamed.append(GroupCall(call.target, encode_arguments(args, kwargs), outputs))
    leaves = [_leaf(body, value) for value in reads]
    wanted = numbers[body.outputs[output]]
    whole = Body(leaves, renamed, [wanted], [body.forms[output]])
    return Part(output, [there.get(value, value) for value in reads], whole)


def _leaf(body: Body, value: int) -> Leaf:
    """The form of an input or an output of a body."""
    if value < len(body.inputs):
        return body.inputs[value]
    return body.forms[body.outputs.index(value)]


def _opened(call: GroupCall, there: Collection[int], body: Body) -> list[GroupCall]:
    """A call, or what is left of a layer norm whose statistics are there: the calls that its
    decomposition ends with."""
    made, *statistics = call.outputs
    if call.target != _LAYER_NORM or made == NONE or not set(statistics) <= set(there):
        return [call]
    mean, deviation = statistics
    args, _ = decode_arguments(call.arguments)
    count = 1 + max(value for other in body.calls for value in other.outputs)
    steps: list[tuple[str, Any]] = [("sub", {"value": mean}), ("mul", {"value": deviation})]
    steps += [(name, at) for name, at in (("mul", args[2]), ("add", args[3])) if at is not None]
    found, before = [], args[0]
    for number, (name, operand) in enumerate(steps, 1):
        after = made if number == len(steps) else count * made + number
        text = encode_arguments([before, operand], {})
        found.append(GroupCall(f"aten.{name}.Tensor", text, [after]))
        before = {"value": after}
    return found


def _read_by(call: GroupCall) -> list[int]:
    args, kwargs = decode_arguments(call.arguments)
    return [*argument_values([args, list(kwargs.values())])]


def _renamed(argument: Any, names: Mapping[int, int]) -> Any:
    if isinstance(argument, list | tuple):
        return [_renamed(item, names) for item in argument]
    if isinstance(argument, dict):
        if set(argument) == {"value"}:
            return {"value": names[argument["value"]]}
        return {key: _renamed(item, names) for key, item in argument.items()}
    return argument
