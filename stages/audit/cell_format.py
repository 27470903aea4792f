"""Values of artifacts as text: cells of a table, and JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from tightfit.stages.audit.artifact_table import flatten_row
from tightfit.util.command_line import to_single_line

MAX_CELL = 64
"""Characters of the longest cell of a table."""
MAX_VALUE = 300
"""Characters of the longest value of a single row, and of metadata."""
PAGE_ROWS = 1000
"""Rows whose cells decide how wide columns are, the first ones."""
_GAP = "  "


def encode_json(value: Any) -> str:
    """A value as JSON on one line: bytes in base64, numbers that JSON has not as "inf", "-inf" and
    "nan"."""
    return json.dumps(_plain_json(value), allow_nan=False)


def _plain_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {name: _plain_json(each) for name, each in value.items()}
    return [_plain_json(each) for each in value] if isinstance(value, list) else value


def format_cell(value: Any, most: int | None = MAX_CELL) -> str:
    """A value in at most so many characters, on one line: a list that is longer gives the beginning
    and how many elements it has, a list of records only their number."""
    text = to_single_line(_format_value(value))
    if most is None or len(text) <= most:
        return text
    if not isinstance(value, list):
        return f"{text[: most - 3]}..."
    if any(isinstance(one, Mapping) for one in value):
        return f"{len(value)} record{'s' if len(value) > 1 else ''}"
    tail = f", ... {len(value)} in all]"
    shown = "[" + _format_value(value[0])
    for one in value[1:]:
        longer = f"{shown}, {_format_value(one)}"
        if len(longer) + len(tail) > most:
            break
        shown = longer
    return f"{shown[: most - len(tail)]}{tail}"


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{name}: {_format_value(each)}" for name, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    return str(value)


def describe_metadata(metadata: Mapping[str, str], full: bool) -> Iterator[str]:
    """A line on each entry of an artifact's metadata."""
    for name, value in metadata.items():
        yield f"{to_single_line(name)}: {format_cell(value, None if full else MAX_VALUE)}"


class TableWriter:
    """Makes lines of rows: `columns` by name, values whole if `full`, and only as many columns as a
    terminal of some `width` has room for; `hidden` are the others, `printed` counts rows."""

    def __init__(self, columns: Sequence[str], full: bool, width: int | None) -> None:
        self.columns, self.width = list(columns), width
        self.titles = [to_single_line(name) for name in columns]
        self.full = full
        self.hidden: list[str] = []
        self.printed = 0

    def record(self, row: Mapping[str, Any]) -> Iterator[str]:
        """One row, a line for each of its columns."""
        flat = flatten_row(row)
        widest = max(map(len, self.titles), default=0)
        most = None if self.full else MAX_VALUE
        for name, title in zip(self.columns, self.titles, strict=True):
            yield f"{title:<{widest}}{_GAP}{format_cell(flat.get(name), most)}"
        self.printed += 1

    def lines(self, *rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """A line with the names of the columns and one for each row; the columns are as wide as the
        first `PAGE_ROWS` rows need."""
        cells = (self._cells(row) for row in chain(*rows))
        page = list(islice(cells, PAGE_ROWS))
        widths = [
            max(len(title), *(len(cell) for cell, _ in column))
            for title, column in zip(self.titles, zip(*page, strict=True), strict=True)
        ]
        count = self._visible_columns(widths)
        right = [all(number for _, number in column) for column in zip(*page, strict=True)]
        self.hidden = self.titles[count:]
        yield _align_cells(self.titles[:count], widths, right)
        for row in chain(page, cells):
            self.printed += 1
            yield _align_cells([cell for cell, _ in row[:count]], widths, right)

    def _cells(self, row: Mapping[str, Any]) -> list[tuple[str, bool]]:
        """The cells of a row, and of each whether it is a number or empty."""
        flat, most = flatten_row(row), None if self.full else MAX_CELL
        values = [flat.get(name) for name in self.columns]
        return [(format_cell(value, most), _is_number(value)) for value in values]

    def _visible_columns(self, widths: Sequence[int]) -> int:
        """How many columns a line has room for, at least one."""
        used, count = 0, 0
        for each in widths:
            used += each + (len(_GAP) if count else 0)
            if self.width is not None and used > self.width and count:
                break
            count += 1
        return count


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _align_cells(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        f"{cell:>{width}}" if number else f"{cell:<{width}}"
        for cell, width, number in zip(cells, widths, right, strict=False)
    ]
    return _GAP.join(padded).rstrip()
