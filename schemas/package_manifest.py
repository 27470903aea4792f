"""A generated module's directory: what it was made from and what its files are, by digest.

Beside the code stands `made_from.json`. The manifest names the graph and the schedule by the
digests in their metadata, and plan.json and each other file of the package by their SHA-256.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tightfit.schemas import store
from tightfit.util.errors import ArtifactError

_MOST_FILES = 1000
MANIFEST_NAME = "made_from.json"
_IGNORED_NAMES = ("__pycache__", ".snakemake_timestamp")
"""What running a module and Snakemake put into its directory."""


@dataclass(frozen=True)
class PackageManifest:
    """Digests, 64 hex digits each, of what a module was made from and of its files by name."""

    graph: str
    schedule: str
    plan: str
    files: dict[str, str]


def manifest_bytes(made_from: PackageManifest) -> bytes:
    """The content of `made_from.json`."""
    return (json.dumps(asdict(made_from), indent=2, sort_keys=True) + "\n").encode()


def read_manifest(directory: Path | str) -> PackageManifest:
    """What a module says it was made from; raises ArtifactError where it does not say it."""
    path = Path(directory) / MANIFEST_NAME
    document = store.read_fields(path, PackageManifest)
    files = document["files"]
    if not isinstance(files, dict):
        raise ArtifactError(f"{path}: files is no mapping from names to digests")
    named = (value for name, value in document.items() if name != "files")
    for digest in (*named, *files.values()):
        if not isinstance(digest, str) or len(digest) != 64:
            raise ArtifactError(f"{path}: {digest!r} is no digest")
    return PackageManifest(**document)


def find_package_graph(directory: Path | str, graphs: Sequence[Path]) -> Path:
    """The graph that a module was made from, of several in files; the only one is taken for it.
    Raises ArtifactError where it was made from none of them."""
    if len(graphs) == 1:
        return graphs[0]
    found = store.find_by_digest(read_manifest(directory).graph, graphs)
    if found is None:
        raise ArtifactError(f"{directory}: was generated from another graph")
    return found


def check_package_sources(directory: Path | str, graph: str, plan: str) -> None:
    """Raises ArtifactError where a module was generated from another graph or another plan than
    those of two digests; a directory that does not say from what says nothing of that."""
    if not (Path(directory) / MANIFEST_NAME).is_file():
        return
    made_from = read_manifest(directory)
    for what, found, given in (("graph", made_from.graph, graph), ("plan", made_from.plan, plan)):
        if found != given:
            raise ArtifactError(
                f"{directory}: was generated from another {what}, generate the module anew"
            )


def check_package_files(directory: Path | str, files: Mapping[str, bytes]) -> None:
    """Raises ArtifactError where the files of a module are not those that its `made_from.json`
    names; a directory without one says nothing of them."""
    if MANIFEST_NAME not in files:
        return
    present = content_digests(files)
    for name, digest in read_manifest(directory).files.items():
        if name not in present:
            raise ArtifactError(f"{directory}: lacks {name}, generate the module anew")
        if present[name] != digest:
            raise ArtifactError(
                f"{directory}: {name} was changed since it was generated, generate the module anew"
            )


def content_digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each file's content, by name."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}


def module_file_digests(directory: Path | str) -> dict[str, str]:
    """The SHA-256 of each file of a module by its path below the directory, `made_from.json` and
    caches left out; raises ArtifactError where one cannot be read."""
    return content_digests(
        {name: data for name, data in _read_files(directory).items() if name != MANIFEST_NAME}
    )


def module_digest(directory: Path | str) -> str:
    """The digest that names a module: of all its files, caches left out. 64 hex digits.

    Raises ArtifactError where the directory or a file of it cannot be read.
    """
    files = content_digests(_read_files(directory))
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _read_files(directory: Path | str) -> dict[str, bytes]:
    directory = Path(directory)
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: there is no such module")
    files = {}
    paths = list(itertools.islice(directory.rglob("*"), _MOST_FILES + 1))
    if len(paths) > _MOST_FILES:
        raise ArtifactError(f"{directory}: holds too many files to be a module")
    for path in sorted(paths):
        name = path.relative_to(directory)
        if path.is_dir() or any(part in _IGNORED_NAMES for part in name.parts):
            continue
        files[name.as_posix()] = store.read_bytes(path)
    return files
