"""Compiled code that is kept beside its sources."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

NOTE = "note: "
"""How a line of a stage begins that is for the user of the package, too."""
COMPILING = NOTE + "compiling the search, once after an install or an edit; takes about a minute"


def forget_stale(module: str) -> None:
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


def is_kept(function: Any) -> bool:
    """Whether the code of a function that numba compiles is kept from an earlier run."""
    return any(Path(function.stats.cache_path).glob(f"*.{function.__name__}-*.nbi"))


def tell_compiling(function: Any) -> None:
    """Prints a note where the first call of a function will compile it."""
    if not is_kept(function):
        print(COMPILING, flush=True)
