"""Where an op came from: the submodule's path and the source line."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import torch

import tightfit

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
_PYTHON = sysconfig.get_path("stdlib")
_OWN = f"{Path(tightfit.__file__).parent}{os.sep}"


def module_of(meta: dict[str, Any]) -> str:
    """The path of the submodule that a captured node belongs to, "" for the model itself.

    A backward node has the path of its forward node.
    """
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    return str(paths[-1]) if paths else ""


def source_of(meta: dict[str, Any]) -> str:
    """The "file:line" of the innermost frame outside PyTorch that a captured node came from."""
    frames = _FRAME.findall(meta.get("stack_trace") or "")
    return _innermost([(file, int(line)) for file, line in frames])


def location_of(error: BaseException | None) -> str:
    """The "file:line" of the innermost frame that an error left outside PyTorch, tightfit and
    Python's own library."""
    frames: list[tuple[str, int]] = []
    while error is not None:
        frames = [
            (frame.filename, frame.lineno or 0)
            for frame in traceback.extract_tb(error.__traceback__)
        ] + frames
        error = error.__cause__ or error.__context__
    outside = [
        frame
        for frame in frames
        if not frame[0].startswith((_OWN, "<")) and not _of_python(frame[0])
    ]
    return _innermost(outside, anywhere=False)


def is_foreign(file: str) -> bool:
    """True for a file that is neither PyTorch's nor tightfit's own."""
    return not file.startswith((_TORCH, _OWN, "<frozen"))


def _of_python(file: str) -> bool:
    return file.startswith(_PYTHON) and "-packages" not in file


def _innermost(frames: list[tuple[str, int]], anywhere: bool = True) -> str:
    outside = [frame for frame in frames if not frame[0].startswith(_TORCH)]
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
