"""Fingerprints of source code, which comments, docstrings and blank lines leave alone.

A fingerprint covers a module, the local modules that it imports, wherever in the code it imports
them, and theirs. Installed packages are covered by their versions.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from tightfit.paths import ROOT
from tightfit.schemas.syntax import Module, read_module

OWN = "tightfit"
"""The package that is read as code where it stands among those of an installation."""

Closure = tuple[dict[str, Path], set[str]]
"""Local modules by name, and the top-level names of the others."""


def stage_fingerprint(stage: str, root: Path = ROOT) -> str:
    """Of a stage: its room, whatever of the checkout it imports, and the files it reads beside
    its code. 16 hex digits."""
    return _fingerprint(_of_stage(stage, root), _resources(root / OWN / "stages" / stage, root))


def stage_code(stage: str, root: Path = ROOT) -> tuple[str, dict[str, str]]:
    """The fingerprint of a stage, and the versions of what it may import."""
    found = _of_stage(stage, root)
    return _fingerprint(found, _resources(root / OWN / "stages" / stage, root)), _versions(found)


def factory_fingerprint(factory: str, search_path: Iterable[Path | str] = ()) -> str:
    """Of a model's source: the module of a factory "package.module:function" and what it imports.

    Modules are looked for in the folders of `search_path`, in the current one and in the
    checkout. 16 hex digits, also for a factory that does not exist or does not parse.
    """
    return _fingerprint(_closure([factory.partition(":")[0]], _folders(search_path)), [])


def factory_versions(factory: str, search_path: Iterable[Path | str] = ()) -> dict[str, str]:
    """The versions of the installed packages that a model's source may import, by name."""
    return _versions(_closure([factory.partition(":")[0]], _folders(search_path)))


def _of_stage(stage: str, root: Path) -> Closure:
    """What the modules of a stage lead to."""
    if root == ROOT:
        return _of_own_stage(stage)
    return _closure(_modules(root / OWN / "stages" / stage, root), [root])


@cache
def _of_own_stage(stage: str) -> Closure:
    """The same for an own stage, once a process, which goes on with the code that it has."""
    return _closure(_modules(ROOT / OWN / "stages" / stage, ROOT), [ROOT])


def _modules(room: Path, root: Path) -> list[str]:
    return [_name_of(path, root) for path in sorted(room.rglob("*.py"))]


def _folders(search_path: Iterable[Path | str]) -> list[Path]:
    return [*(Path(folder) for folder in search_path), Path(), ROOT]


def _versions(closure: Closure) -> dict[str, str]:
    found = {name: _version(name) for name in sorted(closure[1])}
    return {name: version for name, version in found.items() if version}


def _fingerprint(closure: Closure, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    local, foreign = closure
    for name in sorted(local):
        total.update(f"{name} {_read(name, local[name]).digest}\n".encode())
    for name in sorted(foreign):
        total.update(f"{name} {_version(name)}\n".encode())
    for path in sorted(files):
        total.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def _closure(names: Iterable[str], folders: Sequence[Path]) -> Closure:
    """What `names` lead to."""
    waiting, seen, local, foreign = list(names), set[str](), dict[str, Path](), set[str]()
    find = cache(partial(_find, folders=folders))
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path, top = find(name), name.partition(".")[0]
        if path is not None:
            local[name] = path
            waiting += _read(name, path).imports
            waiting += _ancestors(name)
        elif find(top) is None:
            foreign.add(top)
    return local, foreign - sys.stdlib_module_names


def _read(name: str, path: Path) -> Module:
    """What a module says by the name that it is imported by. Nothing is kept in an installation,
    whose files are those of others."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return read_module(path, package, not _is_installed(path.parent))


@cache
def _is_installed(folder: Path) -> bool:
    return any(folder.is_relative_to(installed) for installed in _installations())


def _find(name: str, folders: Sequence[Path]) -> Path | None:
    relative = name.replace(".", os.sep)
    own = name.partition(".")[0] == OWN
    for folder in folders:
        if not own and folder in _installations():
            continue
        start = f"{folder}{os.sep}{relative}"
        for path in (f"{start}{os.sep}__init__.py", f"{start}.py"):
            if os.path.isfile(path):  # noqa: PTH113 - asked thousands of times
                return Path(path)
    return None


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _resources(room: Path, root: Path) -> list[Path]:
    """Files that are not Python in a room, and the templates of reports for the room that uses
    them."""
    folders = [room, root / OWN / "reports"] if room.name == "report" else [room]
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".md") and "__pycache__" not in path.parts
    ]


@cache
def _installations() -> frozenset[Path]:
    """The folders that packages are installed in, tightfit's own where it is no checkout."""
    places = [*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    own = [] if (ROOT / "Snakefile").is_file() else [ROOT]
    return frozenset(
        [*own, *(Path(place) for place in places), *(Path(p).resolve() for p in places)]
    )


@cache
def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
