"""Reads, checks and writes artifacts: Arrow IPC files that carry a name, a version and a digest.

An artifact is a list of rows with a fixed Arrow schema. The file of a table holds one record batch,
rebuilt from plain Python rows, so that equal rows give equal bytes. The digest in the metadata is
the SHA-256 of the whole file with the digest itself blanked, so that any changed byte is noticed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from tightfit.util.errors import ArtifactError

_BLANK_DIGEST = b"tightfit digest goes here".ljust(64, b".")
_MAX_JSON_BYTES = 2**26
_RESERVED = ("artifact", "version", "digest")

Row = dict[str, Any]


@dataclass(frozen=True)
class ArtifactType:
    """The name, version and Arrow schema of one kind of artifact.

    Fields declared `nullable=False` are checked for nulls, inside structs and lists too.
    """

    name: str
    version: int
    schema: pa.Schema

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


@dataclass(frozen=True)
class Header:
    """What an artifact of any kind says of itself: its name, version, digest and metadata."""

    name: str
    version: str
    digest: str
    metadata: dict[str, str]


@dataclass(frozen=True)
class Artifact:
    """What `read` gives: rows in file order, the writer's metadata, the digest (64 hex digits)."""

    rows: list[Row]
    metadata: dict[str, str]
    digest: str


def write(
    path: Path | str,
    kind: ArtifactType,
    rows: Sequence[Mapping[str, Any]],
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Writes rows as an artifact, whole or not at all, and returns its digest. A file that holds
    the same artifact already stays as it is, the time of its last change included.

    Raises ArtifactError when a row does not fit the schema.
    """
    data, digest = _encode(kind, rows, metadata or {})
    if not _has_bytes(path, data):
        write_bytes(path, data)
    return digest


def _has_bytes(path: Path | str, data: bytes) -> bool:
    try:
        return read_bytes(path, len(data)) == data
    except ArtifactError:
        return False


def read(path: Path | str, kind: ArtifactType) -> Artifact:
    """Reads an artifact and verifies name, version, digest, fields and nulls.

    Raises ArtifactError with one sentence that names the file and what is wrong with it.
    """
    path = Path(path)
    data = read_bytes(path)
    metadata = _metadata(path, data)
    _check_identity(path, metadata, kind)
    _check_digest(path, metadata, data)
    table = _checked_table(path, data, kind)
    return Artifact(table.to_pylist(), _writer_metadata(metadata), metadata["digest"])


def map_table(path: Path | str, kinds: Mapping[str, ArtifactType]) -> tuple[Header, pa.Table]:
    """An artifact of one of several kinds, which are given by name, and its rows as an Arrow table.

    All is verified as in `read`, but the file is mapped into memory, so that only what a caller
    makes of the table takes memory. Raises ArtifactError with one sentence that names the file and
    what is wrong with it.
    """
    path = Path(path)
    data = _map_file(path)
    metadata = _metadata(path, data)
    _check_identity(path, metadata)
    name = metadata["artifact"]
    if name not in kinds:
        raise ArtifactError(f"{path}: is a {name!r}, which this program does not know")
    _check_identity(path, metadata, kinds[name])
    _check_digest(path, metadata, data)
    header = Header(name, metadata["version"], metadata["digest"], _writer_metadata(metadata))
    return header, _checked_table(path, data, kinds[name])


def read_header(path: Path | str) -> Header:
    """What an artifact of any kind says of itself, with its digest verified.

    Raises ArtifactError with one sentence that names the file and what is wrong with it.
    """
    path = Path(path)
    data = read_bytes(path)
    metadata = _metadata(path, data)
    _check_identity(path, metadata)
    _check_digest(path, metadata, data)
    return Header(
        metadata["artifact"], metadata["version"], metadata["digest"], _writer_metadata(metadata)
    )


def write_json(path: Path | str, document: Mapping[str, Any]) -> None:
    """Writes a JSON document, whole or not at all, keys in the order given."""
    write_bytes(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path | str, most: int = _MAX_JSON_BYTES) -> dict[str, Any]:
    """Reads a JSON object; raises ArtifactError when the file is absent, has more than `most` bytes
    or is something else."""
    try:
        document = json.loads(read_bytes(path, most), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise ArtifactError(f"{path}: is not a JSON object")
    return document


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def read_fields(path: Path | str, kind: type, optional: Sequence[str] = ()) -> dict[str, Any]:
    """Reads a JSON object with exactly the fields of a dataclass, of which those that are
    `optional` may lack, and whose values are not checked; raises ArtifactError when it has others,
    or is none."""
    document = read_json(path)
    names = [field.name for field in fields(kind)]
    if amiss := sorted((set(document) ^ set(names)) - (set(optional) - set(document))):
        raise ArtifactError(f"{path}: lacks or does not know the keys {', '.join(amiss)}")
    return document


def read_bytes(path: Path | str, most: int | None = None) -> bytes:
    """A file's bytes; raises ArtifactError when it cannot be read, is no regular file (a device, a
    pipe, a directory), or has more than `most` bytes. Reading never waits for any of them."""
    with _open_regular_file(path) as (handle, size):
        if most is not None and size > most:
            raise ArtifactError(f"{path}: has {size} bytes, more than {most}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(size)


def _map_file(path: Path) -> bytes | mmap.mmap:
    """A file's bytes, which stay where they are until somebody looks at them; raises as
    `read_bytes` does."""
    with _open_regular_file(path) as (handle, size):
        return mmap.mmap(handle, size, access=mmap.ACCESS_READ) if size else b""


@contextmanager
def _open_regular_file(path: Path | str) -> Iterator[tuple[int, int]]:
    """The descriptor of a regular file and its size; raises ArtifactError, also where what the
    caller does with it fails."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise ArtifactError(f"{path}: is no regular file")
            yield handle, state.st_size
        finally:
            os.close(handle)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (MemoryError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read ({error or 'it is too large'})") from error


def find_by_digest(digest: str, paths: Sequence[Path | str]) -> Path | None:
    """The first of some artifacts that has a digest, None where none has; raises ArtifactError
    where one that is looked at cannot be read."""
    return next((Path(path) for path in paths if read_header(path).digest == digest), None)


def file_digest(path: Path | str) -> str:
    """The SHA-256 of a file's bytes, 64 hex digits; raises ArtifactError when it cannot be read."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def write_bytes(path: Path | str, data: bytes) -> None:
    """Writes a file under a temporary name, syncs it and renames it into place.

    Raises ArtifactError where that cannot be done (no space left, a folder that is read-only); an
    older file of that name is then still there, and nothing else is.
    """
    path = Path(path)
    try:
        _replace(path, data)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written ({error.strerror or error})") from error


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _encode(
    kind: ArtifactType, rows: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]
) -> tuple[bytes, str]:
    for key in metadata:
        if key in _RESERVED:
            raise ArtifactError(f"{kind}: the metadata key {key!r} is reserved")
    for field in kind.schema:
        for index, row in enumerate(rows):
            if field.name not in row:
                raise ArtifactError(f"{kind}: row {index} lacks the field {field.name!r}")
            _check_nulls(f"{kind}: row {index}", field, row[field.name])
    own = {"artifact": kind.name, "version": str(kind.version), "digest": _BLANK_DIGEST.decode()}
    schema = kind.schema.with_metadata({**dict(sorted(metadata.items())), **own})
    try:
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema).combine_chunks()
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ArtifactError(f"{kind}: a row does not fit the schema ({error})") from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)
    blank = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(blank).hexdigest()
    return blank.replace(_BLANK_DIGEST, digest.encode()), digest


def _blanked_digest(data: bytes | mmap.mmap, digest: str) -> str:
    """The SHA-256 of a file with its digest blanked, without a copy of the file."""
    written, begin, hashed, view = digest.encode(), 0, hashlib.sha256(), memoryview(data)
    while (end := data.find(written, begin)) >= 0:
        hashed.update(view[begin:end])
        hashed.update(_BLANK_DIGEST)
        begin = end + len(written)
    hashed.update(view[begin:])
    return hashed.hexdigest()


def _writer_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if key not in _RESERVED}


def _metadata(path: Path, data: bytes | mmap.mmap) -> dict[str, str]:
    """What the file says of itself; nothing else of it is looked at before the digest is right."""
    try:
        found = pa.ipc.open_file(pa.BufferReader(data)).schema.metadata or {}
        return {key.decode(): value.decode() for key, value in found.items()}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: is not a complete Arrow file") from error


def _checked_table(path: Path, data: bytes | mmap.mmap, kind: ArtifactType) -> pa.Table:
    """The rows of a file whose digest is right; raises ArtifactError where they do not fit the
    schema."""
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: is not a complete Arrow file") from error
    if not table.schema.equals(kind.schema):
        raise ArtifactError(f"{path}: the fields are not those of {kind}")
    for field in kind.schema:
        column = table[field.name]
        if any(_may_have_nulls(field, part) for part in column.chunks):
            for index, value in enumerate(column.to_pylist()):
                _check_nulls(f"{path}: row {index}", field, value)
    return table


def _check_identity(
    path: Path, metadata: Mapping[str, str], kind: ArtifactType | None = None
) -> None:
    name, version = metadata.get("artifact"), metadata.get("version")
    if name is None or version is None or len(metadata.get("digest", "")) != 64:
        wanted = f", {kind} was expected" if kind else ""
        raise ArtifactError(f"{path}: is an Arrow file but no tightfit artifact{wanted}")
    if kind is None:
        return
    if name != kind.name:
        raise ArtifactError(f"{path}: is a {name}/{version}, {kind} was expected")
    if version != str(kind.version):
        raise ArtifactError(f"{path}: has version {version} of {name}, this program reads {kind}")


def _check_digest(path: Path, metadata: Mapping[str, str], data: bytes | mmap.mmap) -> None:
    if _blanked_digest(data, metadata["digest"]) != metadata["digest"]:
        raise ArtifactError(f"{path}: the content does not match its digest, the file was changed")


def _may_have_nulls(field: pa.Field, values: pa.Array) -> bool:
    """Whether something is empty in a column that may not be; what lies below an empty list or
    struct counts, too. It takes no time for each row, as `_check_nulls` does."""
    if values.null_count and not field.nullable:
        return True
    if pa.types.is_struct(field.type):
        children = range(field.type.num_fields)
        return any(_may_have_nulls(field.type.field(at), values.field(at)) for at in children)
    return pa.types.is_list(field.type) and _may_have_nulls(field.type.value_field, values.values)


def _check_nulls(where: str, field: pa.Field, value: Any) -> None:
    if value is None:
        if not field.nullable:
            raise ArtifactError(f"{where}: the field {field.name!r} is empty")
    elif pa.types.is_struct(field.type):
        for index in range(field.type.num_fields):
            child = field.type.field(index)
            if not isinstance(value, Mapping) or child.name not in value:
                raise ArtifactError(f"{where}: the field {child.name!r} is missing")
            _check_nulls(where, child, value[child.name])
    elif pa.types.is_list(field.type):
        child = field.type.value_field
        if pa.types.is_nested(child.type) or not child.nullable:
            for item in value:
                _check_nulls(where, child, item)


_LARGEST = 2**62
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}


def find_mistyped_field(kind: Any, row: Mapping[str, Any]) -> str:
    """The first field of a dataclass that is a whole number (of 62 bits), a number or a text and
    has another value in `row`; "" where there is none."""
    for part in fields(kind):
        types = _TYPES.get(str(part.type))
        value = row[part.name]
        if types is None:
            continue
        large = isinstance(value, int) and abs(value) > _LARGEST
        if not isinstance(value, types) or isinstance(value, bool) or large:
            return part.name
    return ""
