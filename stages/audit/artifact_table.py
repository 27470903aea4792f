"""Any file of a run as rows: an Arrow file has many, a JSON document is one."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tightfit.schemas import store
from tightfit.schemas.package_manifest import MANIFEST_NAME
from tightfit.stages.audit.artifact_kinds import ARTIFACT_TYPES, find_json_kind
from tightfit.util.errors import ArtifactError, ConfigError

BATCH_ROWS = 1000
"""How many rows of an Arrow file are Python objects at a time."""
PARENT_COLUMN = "row"
"""The column that says which row of the file a record of a nested list is from."""
_ARROW_MAGIC = b"ARROW1"
_NOTHING = ("", "none", "null")
"""What a filter calls a value that is not there."""
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

Row = dict[str, Any]


@dataclass(frozen=True)
class ArtifactTable:
    """What a file has, or a `nested` list in it: the file's `kind`, digest and metadata, and
    `count` rows with their `columns` by name (a field of a nested record has a dotted one). `lists`
    are the nested lists of records, each with the columns that its records have. `batches` gives
    rows, with the top-level columns that it is called with, None for all."""

    path: Path
    nested: str
    kind: str
    digest: str
    metadata: dict[str, str]
    count: int
    columns: list[str]
    lists: dict[str, list[str]]
    batches: Callable[[Sequence[str] | None], Iterator[Row]]

    def rows(self, names: Sequence[str] | None = None) -> Iterator[Row]:
        """The rows, one after the other; of `names` only the columns that these are in."""
        return self.batches(None if names is None else [*dict.fromkeys(map(_top_name, names))])

    def find_columns(self, names: Iterable[str]) -> list[str]:
        """The columns that are named, those of a record by its name, too. Raises ConfigError, which
        names what there is, where one is not known."""
        found = []
        for name in names:
            below = [one for one in self.columns if one == name or one.startswith(f"{name}.")]
            if not below:
                raise ConfigError(f"{self.path}: has no column {name!r}{self._hint(name)}")
            found += below
        return found

    def check_filter(self, name: str) -> None:
        """Raises ConfigError where a filter is of no column and of no field of a nested list."""
        nested = {f"{one}.{part}" for one, parts in self.lists.items() for part in parts}
        if name not in nested:
            self.find_columns([name])

    def _hint(self, name: str) -> str:
        """What there is instead of a column, with the nested list that has it."""
        lists = [one for one, parts in self.lists.items() if name in parts]
        if lists:
            below = f"{self.nested}.{lists[0]}" if self.nested else lists[0]
            return f", but the records of {lists[0]} do: tightfit show {self.path} {below}"
        return f", expected one of {', '.join(self.columns)}"


def open_table(path: Path, nested: str = "") -> ArtifactTable:
    """The rows of a file, or of a `nested` list of them (dotted, as "ops" of a graph); a folder
    stands for the manifest of the package that it is. Raises ArtifactError with one sentence where
    the file is damaged or of no known kind, ConfigError where it has no such list."""
    if path.is_dir() and (path / MANIFEST_NAME).is_file():
        path = path / MANIFEST_NAME
    if path.is_dir():
        raise ArtifactError(f"{path}: is a folder, name one file of it")
    parts = nested.split(".") if nested else []
    if _has_arrow_magic(path):
        header, table = store.map_table(path, ARTIFACT_TYPES)
        kind = f"{header.name}/{header.version}"
        for part in parts:
            table = _explode_table(path, table, part)
        return _arrow_table(path, nested, kind, header, table)
    document = _read_document(path)
    json_kind = find_json_kind(path, document)
    json_kind.read(path)
    rows: list[Row] = [document]
    for part in parts:
        rows = _explode_rows(path, rows, part)
    return _json_table(path, nested, json_kind.name, rows)


def _has_arrow_magic(path: Path) -> bool:
    """Whether a file is an Arrow file by its name or its first bytes."""
    if path.suffix == ".arrow":
        return True
    try:
        if not path.is_file():  # a pipe would have to be waited for
            return False
        with path.open("rb") as file:
            return file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
    except OSError:
        return False


def _read_document(path: Path) -> dict[str, Any]:
    try:
        return store.read_json(path)
    except ArtifactError as error:
        if path.suffix == ".json" or "cannot be read" in str(error):
            raise
        raise ArtifactError(f"{path}: is neither an Arrow file nor a JSON object") from error


def _arrow_table(
    path: Path, nested: str, kind: str, header: store.Header, table: pa.Table
) -> ArtifactTable:

    def batches(names: Sequence[str] | None) -> Iterator[Row]:
        chosen = table if names is None else table.select(names)
        for begin in range(0, table.num_rows, BATCH_ROWS):
            yield from chosen.slice(begin, BATCH_ROWS).to_pylist()

    about = (header.digest, header.metadata, table.num_rows)
    lists = _record_lists(table.schema)
    return ArtifactTable(path, nested, kind, *about, table.column_names, lists, batches)


def _record_lists(schema: Iterable[pa.Field]) -> dict[str, list[str]]:
    """The fields that are lists of records, each with the names that its records have."""
    return {
        field.name: [part.name for part in field.type.value_type]
        for field in schema
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type)
    }


def _explode_table(path: Path, table: pa.Table, name: str) -> pa.Table:
    """The records of a list, each a row of its own."""
    found = table.schema.field(name).type if name in table.column_names else None
    if found is None or not pa.types.is_list(found):
        lists = [field.name for field in table.schema if pa.types.is_list(field.type)]
        raise _no_list(path, name, lists)
    column = pa.concat_arrays(table[name].chunks) if table[name].num_chunks else pa.array([], found)
    items, parents = pc.list_flatten(column), pc.list_parent_indices(column)
    if pa.types.is_struct(items.type):
        rows = pa.Table.from_struct_array(items)
    else:
        rows = pa.table({name: items})
    if table.num_rows == 1 or PARENT_COLUMN in rows.column_names:
        return rows
    return rows.add_column(0, PARENT_COLUMN, parents)


def _no_list(path: Path, name: str, lists: Sequence[str]) -> ConfigError:
    known = f", expected one of {', '.join(lists)}" if lists else "; it has none"
    return ConfigError(f"{path}: has no nested list {name!r}{known}")


def _json_table(path: Path, nested: str, kind: str, rows: list[Row]) -> ArtifactTable:
    columns: dict[str, None] = {}
    lists: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in flatten_row(row).items():
            columns[name] = None
            if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
                fields = lists.setdefault(name, {})
                fields.update((part, None) for one in value for part in one)

    def batches(names: Sequence[str] | None) -> Iterator[Row]:
        return iter(rows)

    digest = store.file_digest(path)
    named = {name: [*parts] for name, parts in lists.items()}
    return ArtifactTable(path, nested, kind, digest, {}, len(rows), [*columns], named, batches)


def _explode_rows(path: Path, rows: Sequence[Row], name: str) -> list[Row]:
    """The records of a list in JSON rows, each a row of its own; an object has a row for each of
    its keys."""
    exploded: list[Row] = []
    for index, row in enumerate(rows):
        value = row.get(name)
        if isinstance(value, Mapping):
            value = [{"name": key, "value": each} for key, each in value.items()]
        if not isinstance(value, list):
            known = [key for key, each in row.items() if isinstance(each, list | dict)]
            raise _no_list(path, name, known)
        own = {} if len(rows) == 1 else {PARENT_COLUMN: index}
        exploded += [{**own, **(dict(one) if isinstance(one, Mapping) else {name: one})}
                     for one in value]  # fmt: skip
    return exploded


def flatten_row(row: Mapping[str, Any], before: str = "") -> Row:
    """A row whose nested records are columns with dotted names; lists stay as they are."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten_row(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = value
    return flat


def _top_name(name: str) -> str:
    return name.partition(".")[0]


@dataclass(frozen=True)
class RowFilter:
    """What the value of a column must be: `relation` is =, !=, <, <=, >, >= or ~ (contains). Of a
    list one element is enough, with != all must differ."""

    column: str
    relation: str
    text: str

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Whether a row passes. Raises ConfigError where numbers are compared with none."""
        found = [self._compare(value) for value in _values_at(row, self.column.split("."))]
        return all(found) if self.relation == "!=" else any(found)

    def _compare(self, value: Any) -> bool:
        if self.relation == "~":
            return self.text in _plain_text(value)
        if value is None:
            return (self.text in _NOTHING) == (self.relation == "=") and self.relation in (
                "=",
                "!=",
            )
        wanted: Any = self.text
        if isinstance(value, int | float) and not isinstance(value, bool):
            wanted = self._number()
        else:
            value = _plain_text(value)
        if self.relation in ("=", "!="):
            return bool(value == wanted) == (self.relation == "=")
        if wanted is None:
            return False
        compare = _ORDERS[self.relation]
        return bool(compare(value, wanted))

    def _number(self) -> float | int | None:
        """The number that the filter names, None for nothing; raises ConfigError for a text."""
        if self.text in _NOTHING:
            return None
        try:
            return int(self.text.replace(",", "").replace("_", ""))
        except ValueError:
            pass
        try:
            return float(self.text)
        except ValueError as error:
            raise ConfigError(
                f"--where: {self.column} holds numbers, {self.text!r} is none"
            ) from error


def parse_filter(text: str) -> RowFilter:
    """A filter as people write it: "phase=forward", "seconds > 1e-3", "target~conv". Raises
    ConfigError where it is none."""
    match = re.fullmatch(r"\s*([^=!<>~\s]+)\s*(!=|<=|>=|==|=|<|>|~)\s*(.*?)\s*", text, re.S)
    if match is None:
        raise ConfigError(
            f"--where: {text!r} is no filter, expected COLUMN=VALUE, or !=, <, <=, >, >= or ~ "
            "(contains) in the place of ="
        )
    return RowFilter(match[1], match[2].replace("==", "="), match[3])


def _values_at(value: Any, names: Sequence[str]) -> Iterator[Any]:
    """The values of a dotted name: of a list those of each element."""
    if isinstance(value, list):
        for one in value:
            yield from _values_at(one, names)
    elif names and isinstance(value, Mapping):
        for count in range(len(names), 0, -1):
            name = ".".join(names[:count])
            if name in value:
                yield from _values_at(value[name], names[count:])
                return
    elif not names:
        yield value


def _plain_text(value: Any) -> str:
    """A value as a filter names it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
