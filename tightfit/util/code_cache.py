"""Compiled code that is kept beside its sources."""

from __future__ import annotations

import contextlib
import functools
import marshal
import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

COMPILING_NOTE = "compiling the search, once after an install or an edit; takes about half a minute"


def remove_stale_cache(module: str) -> None:
    """Removes the compiled code of a package, named by the file of its `__init__`, that is older
    than a source of the package. numba looks at the file of a function alone, and not at those of
    the functions that it calls."""
    folder = Path(module).parent
    kept = folder / "__pycache__"
    if not os.access(kept, os.W_OK):
        return
    newest = max(path.stat().st_mtime for path in folder.glob("*.py"))
    for index in kept.glob("*.nbi"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            if index.stat().st_mtime < newest:
                index.unlink()


def is_cached(function: Any) -> bool:
    """Whether the code of a function that numba compiles is kept from an earlier run."""
    return any(Path(function.stats.cache_path).glob(f"*.{function.__name__}-*.nbi"))


def note_compilation(function: Any, note: Callable[[str], None]) -> None:
    """Calls `note` with a sentence if the first call of a function will compile it."""
    if not is_cached(function):
        note(COMPILING_NOTE)


def compile_cached(source: bytes, path: str) -> CodeType:
    """The code of a module at a path, as `compile` makes it; a text that came before, at any path,
    is not compiled again."""
    return _relocate_code(marshal.loads(_compile_source(source)), path)


@functools.lru_cache(maxsize=512)
def _compile_source(source: bytes) -> bytes:
    return marshal.dumps(compile(source, "<source>", "exec", dont_inherit=True))


def _relocate_code(code: CodeType, path: str) -> CodeType:
    parts = (
        _relocate_code(part, path) if isinstance(part, CodeType) else part
        for part in code.co_consts
    )
    return code.replace(co_filename=path, co_consts=tuple(parts))
