"""What a module's source says to Python: its syntax tree as a digest, and what it may import.

Comments, docstrings and blank lines say nothing. What was read is kept beside Python's own
compiled modules, in `__pycache__`, and holds as long as the source is the same to the byte.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path


@dataclass(frozen=True)
class Module:
    """The digest of a module's syntax tree (64 hex digits, that of the bytes where they do not
    parse) and the dotted names that it may import."""

    digest: str
    imports: tuple[str, ...]


def read_module(path: Path, package: str, keep: bool = True) -> Module:
    """What a source file of a package says; read again in the same process only when it was written
    since. With `keep`, what was read is kept for other processes."""
    state = path.stat()
    return _read_module(str(path.absolute()), package, keep, state.st_mtime_ns, state.st_size)


@cache
def _read_module(path: str, package: str, keep: bool, changed: int, size: int) -> Module:
    data = Path(path).read_bytes()
    if not keep:
        return _parse(data, package)
    key = hashlib.sha256(_own() + package.encode() + b"\n" + data).hexdigest()
    place = Path(cache_from_source(path)).with_suffix(".json")
    module = _kept(place, key)
    if module is None:
        module = _parse(data, package)
        _keep(place, key, module)
    return module


def _kept(place: Path, key: str) -> Module | None:
    """What was kept of the source with this key; None where nothing that can be used was."""
    try:
        document = json.loads(place.read_bytes())
        return (
            Module(document["digest"], tuple(document["imports"]))
            if document["key"] == key
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(place: Path, key: str, module: Module) -> None:
    with contextlib.suppress(OSError):  # where nothing can be written, it is parsed each time
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({"key": key, **asdict(module)}))


@cache
def _own() -> bytes:
    """What the digest depends on besides the module: this code, and Python's grammar."""
    return Path(__file__).read_bytes() + sys.version.encode()


def _parse(data: bytes, package: str) -> Module:
    try:
        tree = ast.parse(data.decode())
        names = tuple(dict.fromkeys(imports(tree, package)))
        return Module(hashlib.sha256(_written(tree).encode()).hexdigest(), names)
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return Module(hashlib.sha256(data).hexdigest(), ())


def syntax(source: str) -> str:
    """Source code as its syntax tree, written without positions, comments and docstrings."""
    return _written(ast.parse(source))


def _written(tree: ast.AST) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not _is_text(line)]
    return ast.dump(tree)


def imports(tree: ast.AST, package: str = "") -> Iterator[str]:
    """The dotted names that code may import when it runs: modules, and what is taken from them.

    `package` resolves relative imports; one that leads out of it is left out. What
    stands under `if TYPE_CHECKING` never runs.
    """
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if not base:
                continue
            yield base
            yield from (f"{base}.{name.name}" for name in node.names)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    children = node.orelse if checked and isinstance(node, ast.If) else ast.iter_child_nodes(node)
    for child in children:
        yield from _running(child)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if len(parts) < node.level:
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
