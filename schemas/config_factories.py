"""Factories of a configuration that no job could call, without loading any code for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from tightfit.schemas.factory_source import find_argument_problems, find_function_problem
from tightfit.util.paths import INSTALL_ROOT

CHANGED_IMPORTS = re.compile(rb"__path__|sys\s*\.\s*modules|meta_path|path_hooks|import_hook")
"""What the code of a package has that may make modules which are no files of its folder."""


FactoryProblem = tuple[list[str | int], str]
"""The path of a key, and what is wrong with it, a sentence without its subject."""


def find_factory_problems(document: Any, folder: Path) -> Iterator[FactoryProblem]:
    """The factories of a document, valid or not, whose modules no job could import, or whose
    functions these do not have or do not call with such arguments.

    Args:
        document: The configuration, with its relative paths resolved.
        folder: The folder of the configuration, in which jobs run.

    Yields:
        A problem for each key.
    """
    known = document if isinstance(document, dict) else {}
    models, given = known.get("models"), known.get("search_path", [str(folder)])
    search = given if isinstance(given, list) else []
    folders = [*(Path(entry) for entry in search if isinstance(entry, str)), folder]
    find = cache(lambda module: find_module_specs(module, folders))
    for name, model in models.items() if isinstance(models, dict) else ():
        factory = model.get("factory") if isinstance(model, dict) else None
        module, colon, function = (
            factory.partition(":") if isinstance(factory, str) else ("", "", "")
        )
        if not colon or not all(map(str.isidentifier, module.split("."))):
            continue  # the schema says so
        specs = find(module)
        if specs:
            yield from _find_call_problems(name, model, function, specs)
        elif specs is not None:
            there = ", ".join(dict.fromkeys(str(each.absolute()) for each in folders))
            yield (
                ["models", name, "factory"],
                f"there is no module {module!r} for {factory!r}, expected one in {there} or among "
                "the installed packages",
            )


def _find_call_problems(
    name: str, model: dict[str, Any], function: str, specs: Sequence[ModuleSpec]
) -> Iterator[FactoryProblem]:
    """What is wrong with the call of a model's factory, by the source of its module if that is a
    single file."""
    files = {spec.origin for spec in specs}
    [origin] = files if len(files) == 1 else [None]
    if origin is None or not origin.endswith(".py"):
        return
    file = Path(origin)
    if problem := find_function_problem(file, function):
        yield ["models", name, "factory"], problem
        return
    keys = _argument_paths(model)
    for argument, problem in find_argument_problems(file, function, keys):
        yield ["models", name, *keys.get(argument, ["arguments"])], problem


def _argument_paths(model: dict[str, Any]) -> dict[str, list[str | int]]:
    """The arguments of a model's factory, each with the path of a key that names it."""
    found: dict[str, list[str | int]] = {}
    samples = model.get("samples")
    places: list[tuple[list[str | int], Any]] = [
        (["samples", number], each)
        for number, each in enumerate(samples if isinstance(samples, list) else ())
    ]
    places += [([key], model.get(key)) for key in ("matrix", "arguments")]
    for place, given in places:
        if isinstance(given, dict):
            found |= {str(key): [*place, str(key)] for key in given}
    return found


def find_module_specs(name: str, folders: Sequence[Path]) -> list[ModuleSpec] | None:
    """What is found of a module in some folders, in the checkout or where this process finds its
    own; None if that is not known. No code of it or of its packages runs, so that a package that
    changes what is imported may have any module.

    Example:
        >>> len(find_module_specs("json.decoder", [])), find_module_specs("json.encode", [])
        (1, [])
    """
    first, *parts = name.split(".")
    places = [str(folder.absolute()) for folder in folders] + [str(INSTALL_ROOT)]
    paths = [[*places, *sys.path], *([place] for place in places)]
    specs = _find_specs(first, first, paths)
    for depth, part in enumerate(parts, 1):
        if any(map(_changes_imports, specs)):
            return None
        inside = [list(spec.submodule_search_locations or ()) for spec in specs]
        specs = _find_specs(".".join([first, *parts[:depth]]), part, inside)
    return specs


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
