"""What Python code names: its globals, and the lines that set, call or draw."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

from stages.trace.source import short_path

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


def line_that(codes: list[types.CodeType], does: str, name: str) -> str:
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
