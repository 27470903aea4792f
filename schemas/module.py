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
from tightfit.schemas.errors import ArtifactError

_MOST_FILES = 1000
MADE_FROM = "made_from.json"
_LEFT_BY_OTHERS = ("__pycache__", ".snakemake_timestamp")
"""What running a module and Snakemake put into its directory."""


@dataclass(frozen=True)
class MadeFrom:
    """Digests, 64 hex digits each, of what a module was made from and of its files by name."""

    graph: str
    schedule: str
    plan: str
    files: dict[str, str]


def made_from_bytes(made_from: MadeFrom) -> bytes:
    """The content of `made_from.json`."""
    return (json.dumps(asdict(made_from), indent=2, sort_keys=True) + "\n").encode()


def read_made_from(directory: Path | str) -> MadeFrom:
    """What a module says it was made from; raises ArtifactError where it does not say it."""
    path = Path(directory) / MADE_FROM
    document = store.read_fields(path, MadeFrom)
    files = document["files"]
    if not isinstance(files, dict):
        raise ArtifactError(f"{path}: files is no mapping from names to digests")
    named = (value for name, value in document.items() if name != "files")
    for digest in (*named, *files.values()):
        if not isinstance(digest, str) or len(digest) != 64:
            raise ArtifactError(f"{path}: {digest!r} is no digest")
    return MadeFrom(**document)


def graph_of(directory: Path | str, graphs: Sequence[Path]) -> Path:
    """The graph that a module was made from, of several in files; the only one is taken for it.
    Raises ArtifactError where it was made from none of them."""
    if len(graphs) == 1:
        return graphs[0]
    found = store.with_digest(read_made_from(directory).graph, graphs)
    if found is None:
        raise ArtifactError(f"{directory}: was generated from another graph")
    return found


def check_made_from(directory: Path | str, graph: str, plan: str) -> None:
    """Raises ArtifactError where a module was generated from another graph or another plan than
    those of two digests; a directory that does not say from what says nothing of that."""
    if not (Path(directory) / MADE_FROM).is_file():
        return
    made_from = read_made_from(directory)
    for what, found, given in (("graph", made_from.graph, graph), ("plan", made_from.plan, plan)):
        if found != given:
            raise ArtifactError(
                f"{directory}: was generated from another {what}, generate the module anew"
            )


def check_unchanged(directory: Path | str, files: Mapping[str, bytes]) -> None:
    """Raises ArtifactError where the files of a module are not those that its `made_from.json`
    names; a directory without one says nothing of them."""
    if MADE_FROM not in files:
        return
    present = digests_of(files)
    for name, digest in read_made_from(directory).files.items():
        if name not in present:
            raise ArtifactError(f"{directory}: lacks {name}, generate the module anew")
        if present[name] != digest:
            raise ArtifactError(
                f"{directory}: {name} was changed since it was generated, generate the module anew"
            )


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each file's content, by name."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}


def module_files(directory: Path | str) -> dict[str, str]:
    """The SHA-256 of each file of a module by its path below the directory, `made_from.json` and
    caches left out; raises ArtifactError where one cannot be read."""
    return digests_of({name: data for name, data in _read(directory).items() if name != MADE_FROM})


def module_digest(directory: Path | str) -> str:
    """The digest that names a module: of all its files, caches left out. 64 hex digits.

    Raises ArtifactError where the directory or a file of it cannot be read.
    """
    files = digests_of(_read(directory))
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _read(directory: Path | str) -> dict[str, bytes]:
    directory = Path(directory)
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: there is no such module")
    files = {}
    paths = list(itertools.islice(directory.rglob("*"), _MOST_FILES + 1))
    if len(paths) > _MOST_FILES:
        raise ArtifactError(f"{directory}: holds too many files to be a module")
    for path in sorted(paths):
        name = path.relative_to(directory)
        if path.is_dir() or any(part in _LEFT_BY_OTHERS for part in name.parts):
            continue
        files[str(name)] = store.read_bytes(path)
    return files
