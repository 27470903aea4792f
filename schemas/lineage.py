"""How a file was made: a record of it, in JSON, stands in the folder `lineage` beside the file.

`results/gpt2/graph.arrow` is described by `results/gpt2/lineage/graph.arrow.json`. Records are
apart from what they describe, so that the bytes of an artifact say what is in it and not who made
it: equal inputs give equal artifacts. A record holds no time and no place: paths of inputs are
relative to the folder of the file, and everything that was read is named by its digest.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tightfit.schemas import store
from tightfit.schemas.package_manifest import module_digest
from tightfit.util.code_fingerprint import factory_fingerprint, factory_versions, stage_code
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ArtifactError

LINEAGE_FOLDER = "lineage"


@dataclass(frozen=True)
class LineageInput:
    """A file that was read: its path relative to the folder of what was made, and its digest."""

    path: str
    digest: str


@dataclass(frozen=True)
class LineageRecord:
    """How one file was made.

    `digest` is that of the file (see `digest_of`), `stage` the command that made it and `code` the
    fingerprint of that stage's code, `source` that of the model's ("" where it was not run).
    `versions` are those of Python and of the packages that either imports, `settings` what the
    command was given besides its files.
    """

    digest: str
    stage: str
    code: str
    source: str
    settings: dict[str, Any]
    versions: dict[str, str]
    inputs: list[LineageInput]


def lineage_path(file: Path | str) -> Path:
    """Where the record of a file is."""
    file = Path(file)
    return file.parent / LINEAGE_FOLDER / f"{file.name}.json"


def recorded_file(record: Path) -> Path:
    """The file that the record at a path is about."""
    return record.parent.parent / record.name.removesuffix(".json")


def real_path(path: Path) -> Path:
    """The path without links; a loop of links stays."""
    return Path(os.path.realpath(path))


def relative_path(path: Path) -> Path:
    """A path as people type it: without detours, relative to the current folder if it is below
    it."""
    plain = real_path(path)
    return plain.relative_to(Path.cwd()) if plain.is_relative_to(Path.cwd()) else plain


def remove_with_lineage(file: Path) -> None:
    """Removes a file, where it is there, with the record of how it was made."""
    for path in (file, lineage_path(file)):
        path.unlink(missing_ok=True)


def write_lineage(stage: str, derived: LineageEntry) -> None:
    """Writes a record of each output; raises ArtifactError where one cannot be written."""
    for output, record in _expected_records(stage, derived):
        store.write_json(lineage_path(output), asdict(record))


def is_up_to_date(stage: str, derived: LineageEntry) -> bool:
    """Whether all outputs are there as this code would make them: of these inputs, with these
    settings and versions, and unchanged since they were recorded."""
    try:
        found = _expected_records(stage, derived)
        return all(asdict(read_lineage(output)) == _json_fields(record) for output, record in found)
    except ArtifactError:  # the output or its record is missing or damaged, so it is made again
        return False


def _expected_records(stage: str, derived: LineageEntry) -> list[tuple[Path, LineageRecord]]:
    """The outputs as they are now, with the record that each of them should have."""
    (code, imported), source = stage_code(stage), ""
    versions = {"python": platform.python_version(), **imported}
    if derived.factory:
        source = factory_fingerprint(derived.factory, derived.search_path)
        versions |= factory_versions(derived.factory, derived.search_path)
    digests = {str(path): path_digest(path) for path in derived.inputs}
    found = []
    for output in map(Path, derived.outputs):
        inputs = [
            LineageInput(os.path.relpath(path, output.parent), digest)
            for path, digest in sorted(digests.items())
        ]
        settings = dict(derived.settings)
        record = LineageRecord(path_digest(output), stage, code, source, settings, versions, inputs)
        found.append((output, record))
    return found


def _json_fields(record: LineageRecord) -> dict[str, Any]:
    """The fields of a record as JSON gives them back."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(record)))
    return fields


def read_lineage(file: Path | str) -> LineageRecord:
    """The record of a file; raises ArtifactError where there is none or it is not one."""
    path = lineage_path(file)
    if not path.exists():
        raise ArtifactError(f"{file}: there is no record of how it was made")
    document = store.read_fields(path, LineageRecord)
    kinds = {"settings": dict, "versions": dict, "inputs": list}
    for name, value in document.items():
        if not isinstance(value, kinds.get(name, str)):
            raise ArtifactError(f"{path}: {name} is not what a record has there")
    try:
        inputs = [LineageInput(**entry) for entry in document["inputs"]]
    except TypeError as error:
        raise ArtifactError(f"{path}: inputs is not what a record has there") from error
    if not all(_is_path(entry.path) and isinstance(entry.digest, str) for entry in inputs):
        raise ArtifactError(f"{path}: inputs is not what a record has there")
    return LineageRecord(**{**document, "inputs": inputs})


def _is_path(text: Any) -> bool:
    """Whether a text can be asked for as a path: not too long, and in the file system's letters."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        coded = os.fsencode(text)
    except UnicodeError:
        return False
    return 0 < len(coded) < 2000 and all(len(part) < 256 for part in coded.split(b"/"))


def path_digest(path: Path | str) -> str:
    """What names a file or a module: the digest in an artifact's metadata, which is verified, the
    digest of a module's files, or the SHA-256 of any other file. 64 hex digits.

    Raises ArtifactError where it cannot be read or is damaged.
    """
    path = Path(path)
    if path.is_dir():
        return module_digest(path)
    if path.suffix == ".arrow":
        return store.read_header(path).digest
    return store.file_digest(path)
