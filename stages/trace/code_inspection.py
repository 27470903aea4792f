"""Where an op came from: the submodule's path and the source line."""

from __future__ import annotations

import dis
import os
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tightfit
from tightfit.stages.runtime.guards.encode import MISSING

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_STDLIB_FOLDER = sysconfig.get_path("stdlib")
_TIGHTFIT_FOLDER = f"{Path(tightfit.__file__).parent}{os.sep}"


def node_module_path(meta: dict[str, Any]) -> str:
    """The path of the submodule that a captured node belongs to, "" for the model itself.

    A backward node has the path of its forward node.
    """
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    return str(paths[-1]) if paths else ""


def node_source_line(meta: dict[str, Any]) -> str:
    """The "file:line" of the innermost frame outside PyTorch and Python's own library that a
    captured node came from."""
    frames = _FRAME.findall(meta.get("stack_trace") or "")
    return _innermost_frame([(file, int(line)) for file, line in frames])


def error_location(error: BaseException | None) -> str:
    """The "file:line" of the innermost frame that an error left outside PyTorch, tightfit and
    Python's own library."""
    frames: list[tuple[str, int]] = []
    while error is not None:
        frames = [
            (frame.filename, frame.lineno or 0)
            for frame in traceback.extract_tb(error.__traceback__)
        ] + frames
        error = error.__cause__ or error.__context__
    outside = [frame for frame in frames if not frame[0].startswith((_TIGHTFIT_FOLDER, "<"))]
    return _innermost_frame(outside, anywhere=False)


def is_external_code(file: str) -> bool:
    """True for a file that is neither PyTorch's nor tightfit's own."""
    return not file.startswith((_TORCH_FOLDER, _TIGHTFIT_FOLDER, "<frozen"))


def caller_location() -> str:
    """The "file:line" of the innermost frame outside PyTorch, tightfit and Python's own library."""
    frame = caller_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def caller_frame() -> types.FrameType | None:
    """The innermost frame outside PyTorch, tightfit and Python's own library."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_external_code(file) and not _is_stdlib_file(file):
            return frame
        frame = frame.f_back
    return None


def _is_stdlib_file(file: str) -> bool:
    return file.startswith(_STDLIB_FOLDER) and "-packages" not in file


def _innermost_frame(frames: list[tuple[str, int]], anywhere: bool = True) -> str:
    outside = [
        frame
        for frame in frames
        if not frame[0].startswith(_TORCH_FOLDER) and not _is_stdlib_file(frame[0])
    ]
    chosen = outside or (frames if anywhere else [])
    if not chosen:
        return ""
    file, line = chosen[-1]
    return f"{short_path(file)}:{line}"


def short_path(file: str) -> str:
    """A file below the current directory, a folder that Python searches or an installed package
    without what leads there: the same on every machine."""
    path = Path(file)
    for marker in ("site-packages", "dist-packages"):
        if marker in path.parts:
            return str(Path(*path.parts[path.parts.index(marker) + 1 :]))
    folders = [folder for folder in (Path.cwd(), *map(Path, sys.path)) if folder.is_absolute()]
    below = [path.relative_to(folder) for folder in folders if path.is_relative_to(folder)]
    return str(min(below, key=lambda short: len(short.parts), default=path))


_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_FIELD = ("LOAD_ATTR", "LOAD_METHOD")
_OPCODES_BY_ACCESS = {
    "attribute": ("STORE_ATTR", "DELETE_ATTR"),
    "global": ("STORE_GLOBAL", "DELETE_GLOBAL"),
    "closure": ("STORE_DEREF", "DELETE_DEREF"),
    "read": _FIELD,
    "name": (*_GLOBAL, "LOAD_DEREF"),
}


def global_reads(code: types.CodeType) -> Iterator[tuple[str, str | None]]:
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


def global_writes(code: types.CodeType) -> set[str]:
    """The globals that a code assigns or deletes."""
    return {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in _OPCODES_BY_ACCESS["global"]
    }


def find_line(codes: Iterable[types.CodeType], does: str, name: str) -> str:
    """The "file:line" where one of the codes stores ("attribute", "global", "closure") or takes
    ("read", "name") a name, "" where none does."""
    for code in codes:
        for instruction in dis.get_instructions(code):
            if instruction.opname in _OPCODES_BY_ACCESS[does] and instruction.argval == name:
                line = _line_of(code, instruction.offset)
                return f"{short_path(code.co_filename)}:{line}"
    return ""


def _line_of(code: types.CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The codes of the functions that a code makes."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from nested_codes(constant)


def code_names(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in a code, and its texts that could be such."""
    return {*code.co_names, *filter(str.isidentifier, _strings_in(code.co_consts))}


def code_strings(code: types.CodeType) -> Iterator[str]:
    """The texts in a code."""
    return _strings_in(code.co_consts)


def builds_strings(code: types.CodeType) -> bool:
    """True where a code may put texts together."""
    if {"format", "join"} & set(code.co_names):
        return True
    joins = ("BINARY_OP", "BINARY_ADD", "BUILD_STRING", "FORMAT_VALUE")
    return any(one.opname in joins for one in dis.get_instructions(code))


def _strings_in(constants: Any) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _strings_in(constant)


def uses_dynamic_attributes(code: types.CodeType) -> bool:
    """True where a code takes attributes by names that do not stand in it."""
    if {"vars", "__dict__", "attrgetter"} & set(code.co_names):
        return True
    if "getattr" not in code.co_names:
        return False
    plain = [one for one in dis.get_instructions(code) if one.opname not in _IGNORED_OPCODES]
    asked = sum(one.opname in _GLOBAL and one.argval == "getattr" for one in plain)
    return asked > sum(_has_literal_name(plain, place) for place in range(2, len(plain)))


_IGNORED_OPCODES = ("CACHE", "PUSH_NULL", "NOP", "PRECALL", "EXTENDED_ARG", "RESUME")


def _has_literal_name(instructions: list[dis.Instruction], place: int) -> bool:
    """True for a call whose second argument is a text, with at most one simple one behind it."""
    call = instructions[place]
    if call.opname not in ("CALL", "CALL_FUNCTION") or call.arg not in (2, 3):
        return False
    text = instructions[place - (call.arg - 1)]
    return text.opname == "LOAD_CONST" and isinstance(text.argval, str)


def imported_modules(code: types.CodeType, names: dict[str, Any]) -> Iterator[str]:
    """The full names of the modules that a code imports, or may import by a text."""
    if {"import_module", "modules", "__import__"} & set(code.co_names):
        yield from (text for text in _strings_in(code.co_consts) if text in sys.modules)
    before: list[Any] = [0, 0]
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level = before[-2] if isinstance(before[-2], int) else 0
            yield from _imported_names(instruction.argval, level, before[-1], names)
        before.append(instruction.argval)


def _imported_names(name: str, level: int, parts: Any, names: dict[str, Any]) -> Iterator[str]:
    """The module that is imported, and those it is taken from or that are taken from it."""
    if level:
        package = str(names.get("__package__") or "").split(".")
        name = ".".join(filter(None, [*package[: len(package) - level + 1], name]))
    for end in range(1, name.count(".") + 2):
        yield ".".join(name.split(".")[:end])
    for part in parts or ():
        if f"{name}.{part}" in sys.modules:
            yield f"{name}.{part}"


def is_plan_namespace(names: dict[str, Any]) -> bool:
    """True for the globals of a generated package, whose code runs around a planned part."""
    parts = str(names.get("__package__") or "").split(".")
    packages = (sys.modules.get(".".join(parts[:end])) for end in range(1, len(parts) + 1))
    return any(hasattr(p, "PlanMismatch") and hasattr(p, "PREDICTED_PEAK") for p in packages)


def is_tightfit_code(file: str) -> bool:
    """True for a file of tightfit's stages."""
    return file.startswith(_STAGES_FOLDER)


_STAGES_FOLDER = __file__.rpartition("/trace/")[0]


def closure_cells(function: Any) -> Iterator[tuple[str, types.CellType]]:
    """The cells of a function's closure with their names."""
    if isinstance(function, types.FunctionType) and function.__closure__:
        yield from zip(function.__code__.co_freevars, function.__closure__, strict=True)


def cell_content(cell: types.CellType) -> Any:
    """What a cell holds, ABSENT where it holds nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def argument_defaults(function: Any) -> dict[str, Any]:
    """The defaults of a function's arguments by name."""
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(given) :]
    return {**dict(zip(names, given, strict=True)), **(function.__kwdefaults__ or {})}


def is_functools_function(function: types.FunctionType) -> bool:
    """True for a function that `functools` made, as of single dispatch."""
    return function.__globals__.get("__name__") == "functools"


def has_captured_state(function: types.FunctionType) -> bool:
    """True for a function that others of the same code may differ from."""
    return bool(
        function.__closure__ or function.__defaults__ or function.__kwdefaults__ or vars(function)
    )


_RECORDER_MODULE = "tightfit.stages.trace.guards.attribute_recorder"


def is_called_from_torch() -> bool:
    """True where PyTorch's own code takes an object's `__dict__`, for nobody's `dir`."""
    frame: types.FrameType | None = sys._getframe(3)
    if frame is not None and frame.f_code is nn.Module.__dir__.__code__:
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "") if frame else ""
    return str(name).partition(".")[0] == "torch"


def is_called_from_capture() -> bool:
    """True where what walks through a module's modules is the capture and not the forward."""
    frame: types.FrameType | None = sys._getframe(3)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in ("torch.nn.modules.module", _RECORDER_MODULE):
            capturing = ("torch.fx", "torch.export", "torch._", "torch.utils._")
            return name.startswith(capturing)
        frame = frame.f_back
    return False
