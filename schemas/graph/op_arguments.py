"""The text of an op's arguments: JSON that names values by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

OpArguments = tuple[list[Any], dict[str, Any]]
"""The positional and the keyword arguments of a call, encoded."""


def encode_arguments(args: list[Any], kwargs: dict[str, Any]) -> str:
    """The JSON text of a call. Values are `{"value": id}`; other non-JSON arguments are
    `{"float": "inf"}`, `{"complex": [re, im]}`, `{"dtype": "float32"}`, `{"device": "cpu"}`,
    `{"layout": "strided"}` or `{"memory_format": "contiguous_format"}`."""
    return json.dumps({"args": args, "kwargs": kwargs}, allow_nan=False, separators=(",", ":"))


def decode_arguments(written: str) -> OpArguments:
    """The positional and the keyword arguments, encoded, that `encode_arguments` took."""
    call = json.loads(written)
    return call["args"], call["kwargs"]


def iterate_argument_values(arguments: Any) -> Iterator[int]:
    """The value ids in an encoded argument, in order, repeated as often as they occur."""
    if isinstance(arguments, list):
        for item in arguments:
            yield from iterate_argument_values(item)
    elif isinstance(arguments, dict):
        if set(arguments) == {"value"}:
            yield arguments["value"]
        else:
            for item in arguments.values():
                yield from iterate_argument_values(item)


def values_read(written: str) -> list[int]:
    """The value ids in the text of a call, in order, repeated as often as they occur."""
    args, kwargs = decode_arguments(written)
    return [*iterate_argument_values([args, list(kwargs.values())])]


def renumber_values(argument: Any, names: Mapping[int, Any]) -> Any:
    """Encoded arguments with other ids for their values."""
    if isinstance(argument, list | tuple):
        return [renumber_values(item, names) for item in argument]
    if isinstance(argument, dict):
        if set(argument) == {"value"}:
            return {"value": names[argument["value"]]}
        return {key: renumber_values(item, names) for key, item in argument.items()}
    return argument


def parse_arguments(written: str) -> OpArguments | None:
    """The arguments in a text, None where it is not of the form that `encode_arguments` writes."""
    try:
        call = json.loads(written) if _is_flat(written) else None
    except ValueError:
        return None
    if not isinstance(call, dict) or set(call) != {"args", "kwargs"}:
        return None
    args, kwargs = call["args"], call["kwargs"]
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def _is_flat(written: str) -> bool:
    """Whether no argument is nested deeper than any that an operator takes."""
    depth = deepest = 0
    for letter in written:
        depth += (letter in "[{") - (letter in "]}")
        deepest = max(deepest, depth)
    return deepest < 200
