"""The text of operator calls: targets resolved, arguments decoded by type and checked."""

from __future__ import annotations

import builtins
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.schemas.arguments import decode_arguments
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import NONE, Graph, Op
from tightfit.schemas.groups import group_name, is_group, over_name, overwritten_output
from tightfit.stages.device.foreign import is_foreign
from tightfit.stages.device.operators import (
    WRITE_TARGET,
    decode,
    in_place_calls,
    position_of,
    resolve,
)
from tightfit.stages.device.recurrent import LAYER
from tightfit.stages.generate.naming import Names, identifier


@dataclass(frozen=True)
class Text:
    """Source text that stands for a value."""

    text: str


@dataclass(frozen=True)
class Statement:
    """One statement: `target` ("" for none) takes what `function` of `arguments` gives, followed by
    `suffix`."""

    target: str
    function: str
    arguments: list[str]
    suffix: str = ""


class Operators:
    """The operators a program uses, each bound to a name at the top of its text.

    An operator of which `targets` use one overload goes by its own name.
    """

    def __init__(self, names: Names, targets: Iterable[str]) -> None:
        self._names = names
        self._bound: dict[str, str] = {}
        self._groups: set[str] = set()
        groups = sorted(filter(is_group, set(targets)))
        self._bound |= {target: names.reserve(group_name(target)) for target in groups}
        ordered = sorted(set(targets).difference(groups))
        packets = [target.split(".")[1] for target in ordered if resolve(target)]
        for target, packet in zip(ordered, packets, strict=True):
            alone = packets.count(packet) == 1 and not hasattr(builtins, packet)
            self._bound[target] = self._new_name(target, alone)

    def name(self, target: str) -> str:
        """The name an overload is bound to. Raises ArtifactError unless it exists."""
        if target not in self._bound:
            resolve(target)
            self._bound[target] = self._new_name(target, False)
        return self._imported(self._bound[target]) if is_group(target) else self._bound[target]

    def over(self, target: str, position: int) -> str:
        """The name of a group in place, that writes over its input at a position."""
        return self._imported(over_name(self._bound[target], position))

    def _imported(self, group: str) -> str:
        self._groups.add(group)
        return group

    def _new_name(self, target: str, alone: bool) -> str:
        _, packet, overload = target.split(".")
        plain = alone or overload == "default"
        return self._names.reserve(identifier(packet if plain else f"{packet}_{overload}"))

    def bindings(self) -> list[str]:
        """One line for each operator, in the order of their names."""
        ordered = sorted(self._bound.items(), key=lambda item: item[1])
        return [
            f"{name} = {self._bound_to(target)}" for target, name in ordered if not is_group(target)
        ]

    def imports(self) -> list[str]:
        """The lines that import what some of the names are bound to."""
        lines = ["from .foreign import operator"] if any(map(is_foreign, self._bound)) else []
        lines += [f"from .groups import {name}" for name in sorted(self._groups)]
        return [*lines, "from .recurrent import recurrent_layer"] if LAYER in self._bound else lines

    def _bound_to(self, target: str) -> str:
        if is_foreign(target):
            return f'operator("{target}")'
        return "recurrent_layer" if target == LAYER else f"torch.ops.{target}"


def statements(
    graph: Graph, op: Op, in_place: int, names: Sequence[str], operators: Operators
) -> list[Statement]:
    """The statements that run an op; `in_place` is the value it overwrites, or NONE.

    Raises ArtifactError when the op is not a call that PyTorch has, or changes what it must not.
    """
    encoded_args, encoded_kwargs = decode_arguments(op.arguments)
    values = {value: Text(names[value]) for value in op.inputs}
    args = [decode(argument, values) for argument in encoded_args]
    kwargs = {name: decode(argument, values) for name, argument in encoded_kwargs.items()}
    overload = resolve(op.target)
    _check_call(op, overload, args, kwargs)
    _check_effects(op, overload, encoded_args)
    if is_group(op.target):
        kwargs = {}
    target, suffix = _assignment(op, overload, names)
    if in_place == NONE:
        return [Statement(target, operators.name(op.target), _rendered(args, kwargs), suffix)]
    if is_group(op.target):
        if overwritten_output(graph, op, in_place) is None:
            raise ArtifactError(f"op {op.id} ({op.target}) cannot overwrite value {in_place}")
        name = operators.over(op.target, op.inputs.index(in_place))
        return [Statement(target, name, _rendered(args, kwargs), suffix)]
    position = position_of(encoded_args, in_place, op.target, graph.device)
    if position is None or suffix:
        raise ArtifactError(f"op {op.id} ({op.target}) cannot overwrite value {in_place}")
    calls = in_place_calls(op.target, position, args, kwargs)
    return [
        Statement(
            target if call is calls[-1] else "",
            operators.name(call.target),
            _rendered(call.args, call.kwargs),
        )
        for call in calls
    ]


def joining(op: Op, call: Statement, gradients: Container[str], loose: bool) -> Statement:
    """A statement of an op in which operands named in `gradients` meet, some of which may be
    absent; where it is `loose`, its result may have other strides then."""
    if is_group(op.target):
        places = tuple(place for place, name in enumerate(call.arguments) if name in gradients)
        arguments = [repr(places), *call.arguments]
        return Statement(call.target, f"{call.function}.joining", arguments, call.suffix)
    given = {argument.split("=")[-1].strip("[]") for argument in call.arguments}
    names = {name for text in given for name in text.split(", ") if name in gradients}
    arguments = [call.function, str(len(names)), str(loose), *call.arguments]
    return Statement(call.target, "joining", arguments, call.suffix)


def joining_names(graph: Graph, joined: Iterable[int]) -> list[str]:
    """What a program imports for ops in which gradients meet; groups do that themselves."""
    return ["joining"] if any(not is_group(graph.ops[at].target) for at in joined) else []


def literal(argument: Any) -> str:
    """The source text of a decoded argument."""
    if isinstance(argument, Text):
        return argument.text
    if isinstance(argument, list):
        return f"[{', '.join(literal(item) for item in argument)}]"
    if isinstance(argument, float) and argument - argument != 0:
        return f'float("{argument}")'
    if isinstance(argument, torch.device):
        return f'torch.device("{argument.type}")'
    if isinstance(argument, torch.dtype | torch.layout | torch.memory_format):
        return str(argument)
    return repr(argument)


def _rendered(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    named = [f"{name}={literal(argument)}" for name, argument in kwargs.items()]
    return [literal(argument) for argument in args] + named


def _assignment(op: Op, overload: torch._ops.OpOverload, names: Sequence[str]) -> tuple[str, str]:
    """What stands left of the call, and what is taken from its result."""
    if op.writes:
        return "", ""
    returns = overload._schema.returns
    several = len(returns) > 1
    if any(_is_list(result) for result in returns):
        if several:
            raise ArtifactError(f"op {op.id} ({op.target}) returns lists among other results")
    elif len(returns) != len(op.outputs):
        raise ArtifactError(
            f"op {op.id} ({op.target}) has {len(op.outputs)} outputs instead of {len(returns)}"
        )
    elif not several:
        return ("_" if op.outputs[0] == NONE else names[op.outputs[0]]), ""
    present = [position for position, value in enumerate(op.outputs) if value != NONE]
    if len(present) == 1:
        return names[op.outputs[present[0]]], f"[{present[0]}]"
    parts = ["_" if value == NONE else names[value] for value in op.outputs]
    return ", ".join(parts), ""


def _is_list(result: Any) -> bool:
    return result.type.kind() == "ListType"


def _check_call(
    op: Op, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    expected = overload._schema.arguments
    positional = [argument for argument in expected if not argument.kwarg_only]
    what = f"op {op.id} ({op.target})"
    if len(args) > len(positional):
        raise ArtifactError(f"{what} has {len(args)} arguments instead of {len(positional)}")
    given = dict(zip((argument.name for argument in positional), args, strict=False))
    for name, argument in kwargs.items():
        if name in given or name not in {argument.name for argument in expected}:
            raise ArtifactError(f"{what} has the unknown argument {name!r}")
        given[name] = argument
    for wanted in expected:
        if wanted.name not in given:
            if not wanted.has_default_value():
                raise ArtifactError(f"{what} lacks its argument {wanted.name!r}")
        elif not _fits(given[wanted.name], wanted.real_type):
            raise ArtifactError(f"{what} has an argument {wanted.name!r} of a wrong type")


def _fits(argument: Any, wanted: Any) -> bool:
    """Whether PyTorch would take a decoded argument for a type of an operator's schema."""
    kind = wanted.kind()
    if kind == "OptionalType":
        return argument is None or _fits(argument, wanted.getElementType())
    if kind == "ListType":
        element = wanted.getElementType()
        if isinstance(argument, list):
            return all(_fits(item, element) for item in argument)
        return not isinstance(argument, Text) and _fits(argument, element)
    accepted = _ACCEPTED.get(kind)
    if accepted is None:
        return False
    if isinstance(argument, bool):
        return bool in accepted
    return isinstance(argument, accepted)


_ACCEPTED: dict[str, tuple[type, ...]] = {
    "TensorType": (Text, bool, int, float, complex, type(None)),
    "IntType": (int,),
    "SymIntType": (int,),
    "FloatType": (int, float),
    "BoolType": (bool,),
    "NumberType": (bool, int, float, complex),
    "ComplexType": (int, float, complex),
    "StringType": (str,),
    "DeviceObjType": (torch.device,),
    "ScalarTypeType": (torch.dtype,),
    "LayoutType": (torch.layout,),
    "MemoryFormatType": (torch.memory_format,),
}


def _check_effects(op: Op, overload: torch._ops.OpOverload, encoded_args: Sequence[Any]) -> None:
    """Only `copy_` into the buffer that the op says it writes may change anything."""
    if not op.writes and not overload._schema.is_mutable:
        return
    written = [{"value": value} for value in op.writes]
    if op.target != WRITE_TARGET or encoded_args[:1] != written or op.outputs:
        raise ArtifactError(f"op {op.id} ({op.target}) changes what it does not say it writes")
