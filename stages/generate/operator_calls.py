"""The text of operator calls: targets resolved, arguments decoded by type and checked."""

from __future__ import annotations

import builtins
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.schemas.graph.fused_groups import (
    fused_group_name,
    in_place_group_name,
    in_place_output,
    is_fused_group,
)
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.generate.naming import UniqueNames, format_megabytes, to_identifier
from tightfit.stages.runtime.operators import RNN_LAYER
from tightfit.stages.torch_utils.custom_operators import is_custom_operator
from tightfit.stages.torch_utils.operators import (
    WRITE_TARGET,
    decode_argument,
    in_place_calls,
    in_place_position,
    resolve,
)
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class SourceText:
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


class OperatorBindings:
    """The operators a program uses, each bound to a name at the top of its text.

    An operator of which `targets` use one overload goes by its own name.
    """

    def __init__(self, names: UniqueNames, targets: Iterable[str]) -> None:
        self._names = names
        self._bound: dict[str, str] = {}
        self._groups: set[str] = set()
        groups = sorted(filter(is_fused_group, set(targets)))
        self._bound |= {target: names.reserve(fused_group_name(target)) for target in groups}
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
        return (
            self._imported(self._bound[target]) if is_fused_group(target) else self._bound[target]
        )

    def over(self, target: str, position: int) -> str:
        """The name of a group in place, that writes over its input at a position."""
        return self._imported(in_place_group_name(self._bound[target], position))

    def _imported(self, group: str) -> str:
        self._groups.add(group)
        return group

    def _new_name(self, target: str, alone: bool) -> str:
        _, packet, overload = target.split(".")
        plain = alone or overload == "default"
        return self._names.reserve(to_identifier(packet if plain else f"{packet}_{overload}"))

    def bindings(self) -> list[str]:
        """One line for each operator, in the order of their names."""
        ordered = sorted(self._bound.items(), key=lambda item: item[1])
        return [
            f"{name} = {self._bound_to(target)}"
            for target, name in ordered
            if not is_fused_group(target)
        ]

    def imports(self) -> list[str]:
        """The lines that import what some of the names are bound to."""
        lines = (
            ["from .runtime.operators import custom_operator"]
            if any(map(is_custom_operator, self._bound))
            else []
        )
        lines += [f"from .groups import {name}" for name in sorted(self._groups)]
        return (
            [*lines, "from .runtime.operators import run_rnn_layer"]
            if RNN_LAYER in self._bound
            else lines
        )

    def _bound_to(self, target: str) -> str:
        if is_custom_operator(target):
            return f'custom_operator("{target}")'
        return "run_rnn_layer" if target == RNN_LAYER else f"torch.ops.{target}"


def op_statements(
    graph: Graph, op: Op, in_place: int, names: Sequence[str], operators: OperatorBindings
) -> list[Statement]:
    """The statements that run an op; `in_place` is the value it overwrites, or NONE.

    Raises ArtifactError when the op is not a call that PyTorch has, or changes what it must not.
    """
    encoded_args, encoded_kwargs = decode_arguments(op.arguments)
    values = {value: SourceText(names[value]) for value in op.inputs}
    args = [decode_argument(argument, values) for argument in encoded_args]
    kwargs = {name: decode_argument(argument, values) for name, argument in encoded_kwargs.items()}
    overload = resolve(op.target)
    _check_call(op, overload, args, kwargs)
    _check_mutations(op, overload, encoded_args)
    args, kwargs = dynamic_arguments(graph, op.id, values) or (args, kwargs)
    if is_fused_group(op.target):
        kwargs = {}
    target, suffix = _assignment(op, overload, names)
    if in_place == NO_VALUE:
        return [
            Statement(target, operators.name(op.target), _format_arguments(args, kwargs), suffix)
        ]
    if is_fused_group(op.target):
        if in_place_output(graph, op, in_place) is None:
            raise ArtifactError(f"op {op.id} ({op.target}) cannot overwrite value {in_place}")
        name = operators.over(op.target, op.inputs.index(in_place))
        return [Statement(target, name, _format_arguments(args, kwargs), suffix)]
    position = in_place_position(encoded_args, in_place, op.target, graph.device)
    if position is None or suffix:
        raise ArtifactError(f"op {op.id} ({op.target}) cannot overwrite value {in_place}")
    calls = in_place_calls(op.target, position, args, kwargs)
    return [
        Statement(
            target if call is calls[-1] else "",
            operators.name(call.target),
            _format_arguments(call.args, call.kwargs),
        )
        for call in calls
    ]


def dynamic_arguments(
    graph: Graph, number: int, values: Mapping[int, SourceText]
) -> tuple[list[Any], dict[str, Any]] | None:
    """The decoded arguments of an op with source text in the places of sizes, None where they are
    the same at all sizes."""
    written = None if graph.dynamic is None else graph.dynamic.arguments.get(number)
    if written is None:
        return None

    def decode(argument: Any) -> Any:
        if isinstance(argument, list):
            return [decode(item) for item in argument]
        if isinstance(argument, dict) and set(argument) == {"size"}:
            return SourceText(argument["size"])
        return decode_argument(argument, values)

    args, kwargs = decode_arguments(written)
    return [*map(decode, args)], {name: decode(argument) for name, argument in kwargs.items()}


def absent_gradient_statement(
    op: Op, call: Statement, gradients: Container[str], loose: bool
) -> Statement:
    """A statement of an op in which operands named in `gradients` meet, some of which may be
    absent; where it is `loose`, its result may have other strides then."""
    if is_fused_group(op.target):
        places = tuple(place for place, name in enumerate(call.arguments) if name in gradients)
        arguments = [repr(places), *call.arguments]
        return Statement(call.target, f"{call.function}.joining", arguments, call.suffix)
    given = {argument.split("=")[-1].strip("[]") for argument in call.arguments}
    names = {name for text in given for name in text.split(", ") if name in gradients}
    arguments = [call.function, str(len(names)), str(loose), *call.arguments]
    return Statement(call.target, "combine_gradients", arguments, call.suffix)


def absent_gradient_imports(graph: Graph, joined: Iterable[int]) -> list[str]:
    """What a program imports for ops in which gradients meet; groups do that themselves."""
    return (
        ["combine_gradients"]
        if any(not is_fused_group(graph.ops[at].target) for at in joined)
        else []
    )


def format_literal(argument: Any) -> str:
    """The source text of a decoded argument."""
    if isinstance(argument, SourceText):
        return argument.text
    if isinstance(argument, list):
        return f"[{', '.join(format_literal(item) for item in argument)}]"
    if isinstance(argument, float) and argument - argument != 0:
        return f'float("{argument}")'
    if isinstance(argument, torch.device):
        return f'torch.device("{argument.type}")'
    if isinstance(argument, torch.dtype | torch.layout | torch.memory_format):
        return str(argument)
    return repr(argument)


def _format_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    named = [f"{name}={format_literal(argument)}" for name, argument in kwargs.items()]
    return [format_literal(argument) for argument in args] + named


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
        return ("_" if op.outputs[0] == NO_VALUE else names[op.outputs[0]]), ""
    present = [position for position, value in enumerate(op.outputs) if value != NO_VALUE]
    if len(present) == 1:
        return names[op.outputs[present[0]]], f"[{present[0]}]"
    parts = ["_" if value == NO_VALUE else names[value] for value in op.outputs]
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
        elif not _matches_type(given[wanted.name], wanted.real_type):
            raise ArtifactError(f"{what} has an argument {wanted.name!r} of a wrong type")


def _matches_type(argument: Any, wanted: Any) -> bool:
    """Whether PyTorch would take a decoded argument for a type of an operator's schema."""
    kind = wanted.kind()
    if kind == "OptionalType":
        return argument is None or _matches_type(argument, wanted.getElementType())
    if kind == "ListType":
        element = wanted.getElementType()
        if isinstance(argument, list):
            return all(_matches_type(item, element) for item in argument)
        return not isinstance(argument, SourceText) and _matches_type(argument, element)
    accepted = _ACCEPTED_TYPES.get(kind)
    if accepted is None:
        return False
    if isinstance(argument, bool):
        return bool in accepted
    return isinstance(argument, accepted)


_ACCEPTED_TYPES: dict[str, tuple[type, ...]] = {
    "TensorType": (SourceText, bool, int, float, complex, type(None)),
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


def _check_mutations(op: Op, overload: torch._ops.OpOverload, encoded_args: Sequence[Any]) -> None:
    """Only `copy_` into the buffer that the op says it writes may change anything."""
    if not op.writes and not overload._schema.is_mutable:
        return
    written = [{"value": value} for value in op.writes]
    if op.target != WRITE_TARGET or encoded_args[:1] != written or op.outputs:
        raise ArtifactError(f"op {op.id} ({op.target}) changes what it does not say it writes")


LINE_WIDTH = 84
INDENT = "    "


def format_line(text: str, live: int | None = None, depth: int = 1) -> str:
    """A line, with the live bytes behind it on the right."""
    indented = INDENT * depth + text
    return indented if live is None else f"{indented:<{LINE_WIDTH}}  # {format_megabytes(live):>12}"


def statement_lines(call: Statement, depth: int, live: int | None) -> list[str]:
    """A statement, over several lines where it is long."""
    left = f"{call.target} = " if call.target else ""
    opening, closing = ("(", ")") if call.function else ("[", "]")
    start = f"{left}{call.function}{opening}"
    whole = f"{start}{', '.join(call.arguments)}{closing}{call.suffix}"
    if len(whole) + depth * len(INDENT) <= LINE_WIDTH:
        return [format_line(whole, live, depth)]
    rows: list[list[str]] = [[]]
    for argument in call.arguments:
        longest = LINE_WIDTH - (depth + 1) * len(INDENT) - 1
        if rows[-1] and len(", ".join([*rows[-1], argument])) > longest:
            rows.append([])
        rows[-1].append(argument)
    inner = [format_line(f"{', '.join(row)},", None, depth + 1) for row in rows]
    return [
        format_line(start, None, depth),
        *inner,
        format_line(f"{closing}{call.suffix}", live, depth),
    ]
