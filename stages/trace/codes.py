"""What Python code names: its globals, and the lines that set, call or draw."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from tightfit.stages.trace.source import short_path

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_FIELD = ("LOAD_ATTR", "LOAD_METHOD")
_STORES = {
    "attribute": ("STORE_ATTR", "DELETE_ATTR"),
    "global": ("STORE_GLOBAL", "DELETE_GLOBAL"),
    "closure": ("STORE_DEREF", "DELETE_DEREF"),
    "read": _FIELD,
    "name": (*_GLOBAL, "LOAD_DEREF"),
}


def globals_read(code: types.CodeType) -> Iterator[tuple[str, str | None]]:
    """The globals that a code names, each with the attribute it takes of it or None."""
    before: str | None = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in _GLOBAL:
            yield name, None
            before = name
        elif instruction.opname in _FIELD and before is not None:
            yield before, name
            before = None
        elif instruction.opname not in ("CACHE", "PUSH_NULL", "NOP"):
            before = None


def globals_written(code: types.CodeType) -> set[str]:
    """The globals that a code assigns or deletes."""
    return {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in _STORES["global"]
    }


def line_that(codes: Iterable[types.CodeType], does: str, name: str) -> str:
    """The "file:line" where one of the codes stores ("attribute", "global", "closure") or takes
    ("read", "name") a name, "" where none does."""
    for code in codes:
        for instruction in dis.get_instructions(code):
            if instruction.opname in _STORES[does] and instruction.argval == name:
                line = _line_of(code, instruction.offset)
                return f"{short_path(code.co_filename)}:{line}"
    return ""


def _line_of(code: types.CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The codes of the functions that a code makes."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from nested(constant)


def names_of(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in a code, and its texts that could be such."""
    return {*code.co_names, *filter(str.isidentifier, _texts(code.co_consts))}


def texts_of(code: types.CodeType) -> Iterator[str]:
    """The texts in a code."""
    return _texts(code.co_consts)


def makes_texts(code: types.CodeType) -> bool:
    """True where a code may put texts together."""
    if {"format", "join"} & set(code.co_names):
        return True
    joins = ("BINARY_OP", "BINARY_ADD", "BUILD_STRING", "FORMAT_VALUE")
    return any(one.opname in joins for one in dis.get_instructions(code))


def _texts(constants: Any) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _texts(constant)


def looks_up_names(code: types.CodeType) -> bool:
    """True where a code takes attributes by names that do not stand in it."""
    if {"vars", "__dict__", "attrgetter"} & set(code.co_names):
        return True
    if "getattr" not in code.co_names:
        return False
    plain = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    asked = sum(one.opname in _GLOBAL and one.argval == "getattr" for one in plain)
    return asked > sum(_by_text(plain, place) for place in range(2, len(plain)))


_BETWEEN = ("CACHE", "PUSH_NULL", "NOP", "PRECALL", "EXTENDED_ARG", "RESUME")


def _by_text(instructions: list[dis.Instruction], place: int) -> bool:
    """True for a call whose second argument is a text, with at most one simple one behind it."""
    call = instructions[place]
    if call.opname not in ("CALL", "CALL_FUNCTION") or call.arg not in (2, 3):
        return False
    text = instructions[place - (call.arg - 1)]
    return text.opname == "LOAD_CONST" and isinstance(text.argval, str)


def imported(code: types.CodeType, names: dict[str, Any]) -> Iterator[str]:
    """The full names of the modules that a code imports, or may import by a text."""
    if {"import_module", "modules", "__import__"} & set(code.co_names):
        yield from (text for text in _texts(code.co_consts) if text in sys.modules)
    before: list[Any] = [0, 0]
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level = before[-2] if isinstance(before[-2], int) else 0
            yield from _modules(instruction.argval, level, before[-1], names)
        before.append(instruction.argval)


def _modules(name: str, level: int, parts: Any, names: dict[str, Any]) -> Iterator[str]:
    """The module that is imported, and those it is taken from or that are taken from it."""
    if level:
        package = str(names.get("__package__") or "").split(".")
        name = ".".join(filter(None, [*package[: len(package) - level + 1], name]))
    for end in range(1, name.count(".") + 2):
        yield ".".join(name.split(".")[:end])
    for part in parts or ():
        if f"{name}.{part}" in sys.modules:
            yield f"{name}.{part}"
