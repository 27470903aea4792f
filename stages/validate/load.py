"""Loads a generated module from its directory."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from torch import nn

from schemas.errors import ArtifactError, TightfitError


def load_planned(directory: Path | str, model: nn.Module, **options: str) -> nn.Module:
    """The planned module that a generated package makes of a model, by its `load(model)`;
    `options` are passed on to it.

    Each directory becomes a Python package of its own name, so that several can be loaded in one
    process. Raises ArtifactError when the directory is no such package or refuses the model.
    """
    package = _import(Path(directory).resolve())
    load = getattr(package, "load", None)
    if not callable(load):
        raise ArtifactError(f"{directory}: the package has no function 'load'")
    try:
        planned = load(model, **options)
    except TightfitError:
        raise
    except Exception as error:
        raise ArtifactError(f"{directory}: load refuses the model, {describe(error)}") from error
    if not isinstance(planned, nn.Module):
        raise ArtifactError(f"{directory}: load returns a {type(planned).__name__}, not a module")
    return planned


def describe(error: BaseException) -> str:
    """An error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0]}" if lines else "")


def _import(directory: Path) -> Any:
    initial = directory / "__init__.py"
    if not initial.is_file():
        raise ArtifactError(f"{directory}: there is no generated package")
    digest = hashlib.sha256()
    for file in sorted(directory.rglob("*.py")):
        digest.update(file.read_bytes())
    name = f"tightfit_module_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"
    name += f"_{digest.hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, initial, submodule_search_locations=[str(directory)]
    )
    if spec is None or spec.loader is None:
        raise ArtifactError(f"{directory}: the generated package cannot be imported")
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    try:
        spec.loader.exec_module(package)
    except Exception as error:
        del sys.modules[name]
        raise ArtifactError(f"{directory}: importing it fails, {describe(error)}") from error
    return package
