"""Loads a generated module from its directory."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torch import nn

from tightfit.schemas import store
from tightfit.schemas.package_manifest import check_package_files, content_digests
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE
from tightfit.util.code_cache import compile_cached
from tightfit.util.errors import ArtifactError, TightfitError
from tightfit.util.tracebacks import describe_error

_MAX_SOURCE_BYTES = 2**28
_DATA_SUFFIXES = (".bin", ".pt2")
"""The ends of names of files that may be of any size."""


def load_planned_module(directory: Path | str, model: nn.Module, **options: Any) -> nn.Module:
    """The planned module that a generated package makes of a model, by its `load(model)`;
    `options` are passed on to it.

    Each directory becomes a Python package of its own name, so that several can be loaded in one
    process. Raises ArtifactError when the directory is no such package or refuses the model.
    """
    return load_from_package(load_package(directory), directory, model, **options)


def load_from_package(
    package: Any, directory: Path | str, model: nn.Module, **options: Any
) -> nn.Module:
    """What the `load` of a package from a directory makes of a model; see `load_planned_module`."""
    require_plan(package, directory)
    if hasattr(package, "OFFLOAD_PLAN"):
        raise ArtifactError(
            f"{directory}: is the plan of a whole step, which is loaded with its optimizer: "
            "tightfit.load_whole(package, model, optimizer)"
        )
    load = getattr(package, "load", None)
    if not callable(load):
        raise ArtifactError(f"{directory}: the package has no function 'load'")
    try:
        planned = load(model, **options)
    except TightfitError:
        raise
    except Exception as error:
        raise ArtifactError(
            f"{directory}: load refuses the model, {describe_error(error)}"
        ) from error
    if not isinstance(planned, nn.Module):
        raise ArtifactError(f"{directory}: load returns a {type(planned).__name__}, not a module")
    return planned


def require_plan(package: Any, directory: Path | str) -> None:
    """Raises ArtifactError if a package from a directory says that nothing fits its budget."""
    if getattr(package, "STATUS", "") == "infeasible":
        raise ArtifactError(f"{directory}: this folder has no plan: {package.MESSAGE}")


def load_offloaded_module(
    directory: Path | str,
    model: nn.Module,
    optimizer: Any,
    folder: str | None,
    second_disk: str | None = None,
    **options: Any,
) -> tuple[nn.Module, Any]:
    """The planned module that the package of a whole step makes of a model, and the optimizer that
    takes the place of another one; `folder` is where the file of the offload target goes, and
    `second_disk` that of a third one.

    Raises ArtifactError where the directory is no such package, or refuses model or optimizer.
    """
    package = load_package(directory)
    require_plan(package, directory)
    if not hasattr(package, "OFFLOAD_PLAN"):
        raise ArtifactError(f"{directory}: its plan has all parameters on the device")
    if second_disk is not None:
        options["second_disk"] = second_disk
    try:
        planned, stepping = package.load(model, optimizer, folder, **options)
    except Exception as error:
        raise ArtifactError(f"{directory}: load refuses, {describe_error(error)}") from error
    return planned, stepping


def package_files(directory: Path | str) -> dict[str, bytes]:
    """The files of a package by name; raises ArtifactError where the directory holds none."""
    if not isinstance(directory, str | os.PathLike):
        kind = type(directory).__name__
        raise ArtifactError(
            f"load is given a {kind} as the folder of a package: load(FOLDER, model)"
        )
    directory = Path(directory)
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: there is no generated package")
    files = {
        path.relative_to(directory).as_posix(): store.read_bytes(
            path, None if path.suffix in _DATA_SUFFIXES else _MAX_SOURCE_BYTES
        )
        for path in sorted(directory.rglob("*"))
        if path.suffix in (".py", ".json", ".csv", *_DATA_SUFFIXES)
    }
    if "__init__.py" not in files:
        raise ArtifactError(f"{directory}: there is no generated package")
    return files


def package_digest(files: Mapping[str, bytes]) -> str:
    """The digest of a package's files, 64 hex digits."""
    return hashlib.sha256(repr(sorted(content_digests(files).items())).encode()).hexdigest()


def load_package(directory: Path | str, wanted: str = "") -> Any:
    """The package of a directory, run from bytes that are read once; no bytecode that lies beside
    them is looked at.

    Raises ArtifactError where the directory is no package, one that was changed since it was
    generated or, where a digest is `wanted`, one with another digest, before anything of it is run.
    """
    directory = Path(directory).resolve()
    files = package_files(directory)
    digest = package_digest(files)
    if wanted and digest != wanted:
        raise ArtifactError(f"{directory}: is another package than is wanted, or was changed")
    name = f"tightfit_module_{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"
    name += f"_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    check_package_files(directory, files)
    _PACKAGE_FINDER.enter(name, directory, files)
    try:
        return importlib.import_module(name)
    except Exception as error:
        _PACKAGE_FINDER.leave(name)
        raise ArtifactError(f"{directory}: importing it fails, {describe_error(error)}") from error


@dataclass(frozen=True)
class _PackageModuleLoader(InspectLoader):
    """Runs a module of a package from its bytes."""

    data: bytes
    path: Path

    def is_package(self, fullname: str) -> bool:
        return self.path.name == "__init__.py"

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_source(self, fullname: str) -> str:
        return decode_source(self.data)

    def get_code(self, fullname: str) -> CodeType:
        return compile_cached(self.data, str(self.path))


class _PackageFinder(MetaPathFinder):
    """Finds the modules of the packages that were entered, and nothing else."""

    def __init__(self) -> None:
        self.modules: dict[str, _PackageModuleLoader] = {}

    def enter(self, name: str, directory: Path, files: Mapping[str, bytes]) -> None:
        """Takes the files of a package to be imported under a name."""
        for file, data in files.items():
            stem, _, kind = file.rpartition(".")
            if kind == "py":
                parts = [part for part in stem.split("/") if part != "__init__"]
                full = ".".join([name, *parts])
                self.modules[full] = _PackageModuleLoader(data, directory / file)

    def leave(self, name: str) -> None:
        """Forgets a package and all that was imported of it."""
        for full in [full for full in self.modules if full.split(".")[0] == name]:
            del self.modules[full]
            sys.modules.pop(full, None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self.modules.get(fullname)
        if source is None:
            return None
        spec = ModuleSpec(fullname, source, is_package=source.is_package(fullname))
        spec.origin, spec.has_location = str(source.path), True
        return spec


_PACKAGE_FINDER = _PackageFinder()
sys.meta_path.insert(0, _PACKAGE_FINDER)


@contextlib.contextmanager
def use_disk_folder(folder: str | None) -> Iterator[None]:
    """Within it what is sent to a disk goes to a folder; None leaves that to the environment."""
    before = os.environ.get(DISK_VARIABLE)
    if folder is not None:
        os.environ[DISK_VARIABLE] = folder
    try:
        yield
    finally:
        if folder is not None and before is None:
            del os.environ[DISK_VARIABLE]
        elif folder is not None and before is not None:
            os.environ[DISK_VARIABLE] = before
