"""Planned modules in files and in other processes: a pickle of one carries its package.

A carried package is its files with their digest, and where they were. What is unpickled is run from
there, or else from a copy in the user's cache folder, and only with that digest.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tightfit.util.errors import ArtifactError
from tightfit.util.paths import default_store_path

if TYPE_CHECKING:
    from torch import nn


def package_loader(
    directory: Path | str,
    digest: str = "",
    cuda_graphs: bool = False,
    libraries: bool = False,
    without_compiler: str = "error",
    part: str = "",
    disk: str | None = None,
) -> Callable[[nn.Module, str], nn.Module]:
    """A function of a model, and of what other calls do, which gives a package's planned module,
    whose pickles carry the package. `libraries` and `without_compiler` are for packages with
    groups; others need no compiler. With `part` "eager" it is the plan of eager's kernels that is
    beside. Tensors of a CPU that wait do so in the folder `disk`, unless given in that which the
    environment names; no pickle carries it. Raises ArtifactError where the package refuses the
    model.

    Raises ArtifactError where the directory is no package, or one of another digest than asked for.
    """
    from tightfit.stages.validate.load import load_from_package

    package = _load_picklable(directory, digest)
    more: dict[str, Any] = {"cuda_graphs": True} if cuda_graphs else {}
    more |= {} if disk is None else {"disk": disk}
    if hasattr(package, "GROUPS"):
        if part:
            package = getattr(package, part)
        else:
            more |= {"libraries": libraries, "without_compiler": without_compiler}
    return lambda model, on_mismatch: load_from_package(
        package, directory, model, on_mismatch=on_mismatch, **more
    )


def package_shapes(directory: Path | str) -> str:
    """The shapes of the tensors of the calls that a package's plan takes, "" where there is none.

    Raises ArtifactError where the directory is no package.
    """
    interface = getattr(_load_picklable(directory, ""), "INTERFACE", None)
    if interface is None:
        return ""
    places = [leaf for leaf in interface.leaves if isinstance(leaf, int)]
    return ", ".join(str(tuple(interface.tensors[place].shape)) for place in places)


def _load_picklable(directory: Path | str, digest: str) -> ModuleType:
    from tightfit.stages.validate.load import load_package, package_digest, package_files

    digest = digest or package_digest(package_files(directory))
    package = load_package(directory, digest)
    vars(package)["carrying"] = functools.partial(
        _reduce_module, str(Path(directory).resolve()), digest
    )
    return package


def _reduce_module(
    place: str, digest: str, model: nn.Module, on_mismatch: str, *more: Any
) -> tuple[Any, ...]:
    """How a planned module is pickled, with `more` of how its package was loaded. Raises
    ArtifactError where its package is gone."""
    from tightfit.stages.validate.load import package_digest, package_files

    files = package_files(place)
    if package_digest(files) != digest:
        raise ArtifactError(f"{place}: was changed since the planned module was made: plan again")
    return load_pickled, (place, digest, files, model, on_mismatch, *(more if any(more) else ()))


def load_pickled(
    place: str,
    digest: str,
    files: Mapping[str, bytes],
    model: nn.Module,
    on_mismatch: str,
    *more: Any,
) -> nn.Module:
    """The planned module of a pickle; see `pickled_package_loader`."""
    return pickled_package_loader(place, digest, files, *more)(model, on_mismatch)


def pickled_package_loader(
    place: str, digest: str, files: Mapping[str, bytes], *more: Any
) -> Callable[[nn.Module, str], nn.Module]:
    """The loader of a package that a pickle carries. Raises ArtifactError where `files` are not
    those of the digest, before anything of them is run."""
    from tightfit.stages.validate.load import package_digest

    whole = isinstance(place, str) and all(map(_is_package_file, files, files.values()))
    if not whole or package_digest(files) != digest:
        raise ArtifactError("the package in the pickle is not the one that was put into it")
    return package_loader(_find_or_copy(place, digest, files), digest, *more)


def _find_or_copy(place: str, digest: str, files: Mapping[str, bytes]) -> Path:
    """A folder that holds the package: where it was, or a copy."""
    from tightfit.stages.generate.package import write_directory

    copy = default_store_path() / "packages" / digest
    for folder in (Path(place), copy):
        if _holds_package(folder, digest):
            return folder
    write_directory(copy, files)
    return copy


def _holds_package(folder: Path, digest: str) -> bool:
    from tightfit.stages.validate.load import package_digest, package_files

    try:
        return package_digest(package_files(folder)) == digest
    except (ArtifactError, OSError, ValueError):
        return False


def _is_package_file(name: object, data: object) -> bool:
    """Whether a pickle may hold a file of this name with this content."""
    named = (
        isinstance(name, str)
        and re.fullmatch(r"(runtime/)?(\w+/)?\w+\.(py|bin|json|pt2)", name) is not None
    )
    return named and isinstance(data, bytes)
