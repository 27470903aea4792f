"""Fingerprints of source code, which comments, docstrings and blank lines leave alone.

A fingerprint covers a module, the local modules that it imports, wherever in the code it imports
them, and theirs. Installed packages are covered by their versions.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

from tightfit.util.paths import INSTALL_ROOT


@dataclass(frozen=True)
class ModuleSyntax:
    """The digest of a module's syntax tree (64 hex digits, that of the bytes where they do not
    parse) and the dotted names that it may import."""

    digest: str
    imports: tuple[str, ...]


def read_module_syntax(path: Path, package: str, keep: bool = True) -> ModuleSyntax:
    """What a source file of a package says; read again in the same process only when it was written
    since. With `keep`, what was read is kept for other processes."""
    state = path.stat()
    return _read_module(str(path.absolute()), package, keep, state.st_mtime_ns, state.st_size)


@cache
def _read_module(path: str, package: str, keep: bool, changed: int, size: int) -> ModuleSyntax:
    data = Path(path).read_bytes()
    if not keep:
        return _parse(data, package)
    key = hashlib.sha256(_cache_salt() + package.encode() + b"\n" + data).hexdigest()
    place = Path(cache_from_source(path)).with_suffix(".json")
    module = _read_cached_syntax(place, key)
    if module is None:
        module = _parse(data, package)
        _write_cached_syntax(place, key, module)
    return module


def _read_cached_syntax(place: Path, key: str) -> ModuleSyntax | None:
    """What was kept of the source with this key; None where nothing that can be used was."""
    try:
        document = json.loads(place.read_bytes())
        return (
            ModuleSyntax(document["digest"], tuple(document["imports"]))
            if document["key"] == key
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_cached_syntax(place: Path, key: str, module: ModuleSyntax) -> None:
    with contextlib.suppress(OSError):  # where nothing can be written, it is parsed each time
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({"key": key, **asdict(module)}))


@cache
def _cache_salt() -> bytes:
    """What the digest depends on besides the module: this code, and Python's grammar."""
    return Path(__file__).read_bytes() + sys.version.encode()


def _parse(data: bytes, package: str) -> ModuleSyntax:
    try:
        tree = ast.parse(data.decode())
        names = tuple(dict.fromkeys(imported_names(tree, package)))
        return ModuleSyntax(hashlib.sha256(_dump_tree(tree).encode()).hexdigest(), names)
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return ModuleSyntax(hashlib.sha256(data).hexdigest(), ())


def _dump_tree(tree: ast.AST) -> str:
    """A syntax tree as text, without positions, comments and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [line for line in node.body if not _is_docstring(line)]
    return ast.dump(tree)


def imported_names(tree: ast.AST, package: str = "") -> Iterator[str]:
    """The dotted names that code may import when it runs: modules, and what is taken from them.

    `package` resolves relative imports; one that leads out of it is left out. What
    stands under `if TYPE_CHECKING` never runs.
    """
    for node in _walk_executed(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_module(node, package)
            if not base:
                continue
            yield base
            yield from (f"{base}.{name.name}" for name in node.names)


def _walk_executed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    children = node.orelse if checked and isinstance(node, ast.If) else ast.iter_child_nodes(node)
    for child in children:
        yield from _walk_executed(child)


def _absolute_module(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if len(parts) < node.level:
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


PACKAGE_NAME = "tightfit"
"""The package that is read as code where it stands among those of an installation."""

ModuleClosure = tuple[dict[str, Path], set[str]]
"""Local modules by name, and the top-level names of the others."""


def stage_fingerprint(stage: str, root: Path = INSTALL_ROOT) -> str:
    """Of a stage: its room, whatever of the checkout it imports, and the files it reads beside
    its code. 16 hex digits."""
    return _fingerprint(
        _stage_closure(stage, root), _resource_files(root / PACKAGE_NAME / "stages" / stage, root)
    )


def stage_code(stage: str, root: Path = INSTALL_ROOT) -> tuple[str, dict[str, str]]:
    """The fingerprint of a stage, and the versions of what it may import."""
    found = _stage_closure(stage, root)
    return _fingerprint(
        found, _resource_files(root / PACKAGE_NAME / "stages" / stage, root)
    ), _versions(found)


def factory_fingerprint(factory: str, search_path: Iterable[Path | str] = ()) -> str:
    """Of a model's source: the module of a factory "package.module:function" and what it imports.

    Modules are looked for in the folders of `search_path`, in the current one and in the
    checkout. 16 hex digits, also for a factory that does not exist or does not parse.
    """
    return _fingerprint(
        _import_closure([factory.partition(":")[0]], _search_folders(search_path)), []
    )


def factory_versions(factory: str, search_path: Iterable[Path | str] = ()) -> dict[str, str]:
    """The versions of the installed packages that a model's source may import, by name."""
    return _versions(_import_closure([factory.partition(":")[0]], _search_folders(search_path)))


def _stage_closure(stage: str, root: Path) -> ModuleClosure:
    """What the modules of a stage lead to."""
    if root == INSTALL_ROOT:
        return _cached_stage_closure(stage)
    return _import_closure(_module_names(stage, root), [root])


@cache
def _cached_stage_closure(stage: str) -> ModuleClosure:
    """The same for an own stage, once a process, which goes on with the code that it has."""
    return _import_closure(_module_names(stage, INSTALL_ROOT), [INSTALL_ROOT])


def _module_names(stage: str, root: Path) -> list[str]:
    """The modules of a stage, and those that it copies into what it makes."""
    folders = (stage, "runtime") if stage == "generate" else (stage,)
    stages = root / PACKAGE_NAME / "stages"
    return [
        _module_name(path, root)
        for folder in folders
        for path in sorted((stages / folder).rglob("*.py"))
    ]


def _search_folders(search_path: Iterable[Path | str]) -> list[Path]:
    return [*(Path(folder) for folder in search_path), Path(), INSTALL_ROOT]


def _versions(closure: ModuleClosure) -> dict[str, str]:
    found = {name: _version(name) for name in sorted(closure[1])}
    return {name: version for name, version in found.items() if version}


def _fingerprint(closure: ModuleClosure, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    local, foreign = closure
    for name in sorted(local):
        total.update(f"{name} {_read_source(name, local[name]).digest}\n".encode())
    for name in sorted(foreign):
        total.update(f"{name} {_version(name)}\n".encode())
    for path in sorted(files):
        total.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def _import_closure(names: Iterable[str], folders: Sequence[Path]) -> ModuleClosure:
    """What `names` lead to."""
    waiting, seen, local, foreign = list(names), set[str](), dict[str, Path](), set[str]()
    find = cache(partial(_find_module_file, folders=folders))
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path, top = find(name), name.partition(".")[0]
        if path is not None:
            local[name] = path
            waiting += _read_source(name, path).imports
            waiting += _ancestors(name)
        elif find(top) is None:
            foreign.add(top)
    return local, foreign - sys.stdlib_module_names


def _read_source(name: str, path: Path) -> ModuleSyntax:
    """What a module says by the name that it is imported by. Nothing is kept in an installation,
    whose files are those of others."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return read_module_syntax(path, package, not _is_installed(path.parent))


@cache
def _is_installed(folder: Path) -> bool:
    return any(folder.is_relative_to(installed) for installed in _install_folders())


def _find_module_file(name: str, folders: Sequence[Path]) -> Path | None:
    relative = name.replace(".", os.sep)
    own = name.partition(".")[0] == PACKAGE_NAME
    for folder in folders:
        if not own and folder in _install_folders():
            continue
        start = f"{folder}{os.sep}{relative}"
        for path in (f"{start}{os.sep}__init__.py", f"{start}.py"):
            if os.path.isfile(path):  # noqa: PTH113 - asked thousands of times
                return Path(path)
    return None


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _resource_files(room: Path, root: Path) -> list[Path]:
    """Files that are not Python in a room, and the templates of reports for the room that uses
    them."""
    folders = [room, root / PACKAGE_NAME / "reports"] if room.name == "report" else [room]
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".md") and "__pycache__" not in path.parts
    ]


@cache
def _install_folders() -> frozenset[Path]:
    """The folders that packages are installed in, tightfit's own where it is no checkout."""
    places = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    own = [] if (INSTALL_ROOT / "Snakefile").is_file() else [INSTALL_ROOT]
    return frozenset(
        [*own, *(Path(place) for place in places), *(Path(p).resolve() for p in places)]
    )


@cache
def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
