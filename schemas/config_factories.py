"""Factories of a configuration whose module cannot be found, without loading any code for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from tightfit.util.paths import INSTALL_ROOT

CHANGED_IMPORTS = re.compile(rb"__path__|sys\s*\.\s*modules|meta_path|path_hooks|import_hook")
"""What the code of a package has that may make modules which are no files of its folder."""


def find_missing_factories(document: Any, folder: Path) -> Iterator[tuple[list[str], str]]:
    """The factories of a document, valid or not, whose modules no job could import.

    Args:
        document: The configuration, with its relative paths resolved.
        folder: The folder of the configuration, in which jobs run.

    Yields:
        For each the path of its key, and a sentence without its subject.
    """
    known = document if isinstance(document, dict) else {}
    models, given = known.get("models"), known.get("search_path", [str(folder)])
    search = given if isinstance(given, list) else []
    folders = [*(Path(entry) for entry in search if isinstance(entry, str)), folder]
    find = cache(lambda module: find_module(module, folders))
    for name, model in models.items() if isinstance(models, dict) else ():
        factory = model.get("factory") if isinstance(model, dict) else None
        module, colon, _ = factory.partition(":") if isinstance(factory, str) else ("", "", "")
        if colon and all(map(str.isidentifier, module.split("."))) and not find(module):
            there = ", ".join(dict.fromkeys(str(each.absolute()) for each in folders))
            yield (
                ["models", name, "factory"],
                f"there is no module {module!r} for {factory!r}, expected one in {there} or among "
                "the installed packages",
            )


def find_module(name: str, folders: Sequence[Path]) -> bool:
    """Whether a module may be found in one of some folders, in the checkout or where this process
    finds its own. No code of it or of its packages runs, so that what these do when they are loaded
    is not known: a package that changes what is imported counts as one that has the module.

    Example:
        >>> find_module("json.decoder", []), find_module("json.encode", [])
        (True, False)
    """
    first, *parts = name.split(".")
    places = [str(folder.absolute()) for folder in folders] + [str(INSTALL_ROOT)]
    paths = [[*places, *sys.path], *([place] for place in places)]
    specs = _find_specs(first, first, paths)
    for depth, part in enumerate(parts, 1):
        if any(map(_changes_imports, specs)):
            return True
        inside = [list(spec.submodule_search_locations or ()) for spec in specs]
        specs = _find_specs(".".join([first, *parts[:depth]]), part, inside)
    return bool(specs)


def _find_specs(name: str, last: str, paths: Sequence[Sequence[str]]) -> list[ModuleSpec]:
    """What lies in each of some lists of folders under the `last` part of a module's name, and what
    finders of this process other than Python's for folders know of it."""
    # Asked for the whole name, that of folders would look for the package among loaded modules.
    found = [PathFinder.find_spec(last, path) for path in paths]
    for finder in sys.meta_path:
        if finder is not PathFinder and hasattr(finder, "find_spec"):
            found += [finder.find_spec(name, path) for path in (paths if name != last else [None])]
    return [spec for spec in found if spec is not None]


def _changes_imports(spec: ModuleSpec) -> bool:
    """Whether the code of a package, or of a module that is none, may make other modules; True if
    it cannot be read."""
    if spec.origin is None and spec.submodule_search_locations is not None:
        return False  # folders without code
    if not spec.origin or not spec.origin.endswith(".py"):
        return True
    try:
        return CHANGED_IMPORTS.search(Path(spec.origin).read_bytes()) is not None
    except OSError:
        return True
