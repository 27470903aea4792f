"""The compiled libraries of a package: native code, which runs where somebody asks for it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .compile import build_description, build_key

LoadedLibrary = Callable[[list[Tensor]], Sequence[Tensor]]


class LibraryError(RuntimeError):
    """The file of libraries is not the one that was generated, or does not load."""


@dataclass(frozen=True)
class CompiledLibraries:
    """A file beside the module, its SHA-256, and the key of what its libraries were compiled for,
    which `said` tells people."""

    file: str
    digest: str
    key: str
    said: str

    def unlike(self, device: torch.device) -> str:
        """Why they are not for this process and a device; "" where they are."""
        if build_key(device) == self.key:
            return ""
        return (
            f"the compiled libraries are for {self.said}, here is {build_description(device)}"
            f"{_same_description_clause(self.said, device)}"
        )

    def opened(self, names: Sequence[str]) -> dict[str, LoadedLibrary]:
        """The libraries of these names. What is loaded are the bytes whose digest was looked at, of
        a copy that is the user's own. Raises LibraryError where the file is another one."""
        path = Path(__file__).parents[2] / self.file
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != self.digest:
            raise LibraryError(f"{path} is not the file of libraries that was generated")
        try:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / self.file
                copy.write_bytes(data)
                return {name: load_aot_library(copy, name) for name in names}
        except (OSError, RuntimeError) as error:
            raise LibraryError(f"{path}: {error}") from error


def _same_description_clause(said: str, device: torch.device) -> str:
    """What is to be added where both are told in the same words."""
    return ", of another build or processor" if said == build_description(device) else ""


def load_aot_library(file: Path, name: str) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    """What runs the library of a name in a file (.pt2), which is not read again afterwards; raises
    RuntimeError, in one sentence, where it cannot be loaded here."""
    loader: Any = getattr(getattr(torch._C, "_aoti", None), "AOTIModelPackageLoader", None)
    if loader is None:
        raise RuntimeError(f"PyTorch {torch.__version__} loads no compiled libraries")
    try:
        run: Callable[[list[Tensor]], Sequence[Tensor]] = loader(
            str(file), name, False, 1, -1
        ).boxed_run
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or [""])[0]
        raise RuntimeError(f"the compiled library {name} does not load: {said}") from error
    return run
