"""The part of `stages/runtime` that the modules of a package import."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

_RUNTIME = Path(__file__).parents[1] / "runtime"
_FOLDER = PurePosixPath("runtime")


def runtime_files(texts: Iterable[str]) -> dict[str, bytes]:
    """The files, by name within a package, that the modules with these texts import from its folder
    `runtime`, and those that these import in turn.

    Example:
        >>> "runtime/pytree.py" in runtime_files(["from .runtime.pytree import read_tree"])
        True
    """
    found: dict[str, bytes] = {}
    waiting = [name for text in texts for name in _imported_files(text, PurePosixPath())]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        text, imported = _runtime_module(name)
        found[name] = text
        waiting += imported
    return found


@cache
def _runtime_module(name: str) -> tuple[bytes, tuple[str, ...]]:
    """The text of a file of the runtime, and the files that it imports."""
    path = PurePosixPath(name)
    data = (_RUNTIME / path.relative_to(_FOLDER)).read_bytes()
    return data, tuple(_imported_files(data.decode(), path.parent))


def _imported_files(text: str, folder: PurePosixPath) -> Iterator[str]:
    """The files of the runtime that a module imports when it runs, with the packages around them;
    `folder` is that of the module."""
    for node in _run_time_nodes(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = [folder, *folder.parents][node.level - 1]
        module = base.joinpath(*(node.module or "").split("."))
        for path in (module, *(module / alias.name for alias in node.names)):
            if path.parts[:1] == _FOLDER.parts:
                yield from _files_of(path)


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree but those that only a type checker looks at."""
    for child in ast.iter_child_nodes(node):
        is_typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not is_typing:
            yield child
            yield from _run_time_nodes(child)


def _files_of(module: PurePosixPath) -> Iterator[str]:
    """The file of a module of the runtime, if it is one, and those of the packages around it."""
    within = module.relative_to(_FOLDER)
    if within.parts and (_RUNTIME / within).with_suffix(".py").is_file():
        yield f"{module}.py"
    elif not (_RUNTIME / within).is_dir():
        return
    for package in (module, *module.parents):
        if package.parts and (_RUNTIME / package.relative_to(_FOLDER)).is_dir():
            yield f"{package}/__init__.py"
