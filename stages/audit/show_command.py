"""`show`: prints any file of a run as a table."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.stages.audit.artifact_table import ArtifactTable, RowFilter

DEFAULT_ROWS = 20
"""How many rows a table has unless it is asked for others."""


@dataclass(frozen=True)
class RowRange:
    """Rows from `begin` to before `end`, None for the last one."""

    begin: int = 0
    end: int | None = DEFAULT_ROWS


def parse_rows(text: str) -> RowRange:
    """The rows that "20", "100:120", "100:" or "all" stand for; raises ArgumentTypeError where that
    is none."""
    if text == "all":
        return RowRange(0, None)
    match = re.fullmatch(r"([0-9]{1,18})|([0-9]{0,18}):([0-9]{0,18})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} is no count, range (100:120) or all")
    if match[1]:
        return RowRange(0, int(match[1]))
    begin, end = int(match[2] or 0), int(match[3]) if match[3] else None
    if end is not None and end < begin:
        raise argparse.ArgumentTypeError(f"{text} ends before it begins: type {end}:{begin}")
    return RowRange(begin, end)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", type=Path, help="an Arrow file or a JSON document of a run")
    parser.add_argument(
        "list",
        nargs="?",
        default="",
        help="a nested list to print instead, each record a row: ops of a graph.arrow",
    )
    parser.add_argument(
        "--rows",
        type=parse_rows,
        help=f"how many, a range such as 100:120, or all (default: {DEFAULT_ROWS}; with --json "
        "all)",
    )
    parser.add_argument("--columns", help="the columns to print, with commas: id,target,outputs")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="FILTER",
        help="print rows with such a value: phase=forward, also !=, <, <=, >, >= and ~ (contains); "
        "given several times, all must hold",
    )
    parser.add_argument("--full", action="store_true", help="print long values whole")
    parser.add_argument("--json", action="store_true", help="print JSON, with all digits")


def run(options: argparse.Namespace) -> None:
    """Prints the table. Raises ArtifactError where the file is damaged or of no known kind,
    ConfigError where a column, a list or a filter is none."""
    from tightfit.stages.audit.artifact_table import open_table, parse_filter

    filters = [parse_filter(text) for text in options.where]
    table = open_table(options.file, options.list)
    for each in filters:
        table.check_filter(each.column)
    wanted = [name.strip() for name in (options.columns or "").split(",") if name.strip()]
    columns = table.find_columns(wanted) if wanted else []
    query = RowQuery(table, filters, columns)
    if options.json:
        _print_json(query, options.rows or RowRange(0, None))
    else:
        _print_table(query, options.rows or RowRange(), options.full)


@dataclass
class RowQuery:
    """The rows of a table that pass all filters; `matches` counts them when all were looked at.
    `columns` are those to print, none for all."""

    table: ArtifactTable
    filters: Sequence[RowFilter]
    columns: Sequence[str]
    matches: int = 0

    def rows(self, asked: RowRange) -> Iterator[dict[str, Any]]:
        """The rows of a range, of which only what is printed is read."""
        names = [*self.columns, *(each.column for each in self.filters)] if self.columns else None
        if not self.filters:
            self.matches = self.table.count
            yield from islice(self.table.rows(names), asked.begin, asked.end)
            return
        for row in self.table.rows(names):
            if all(each.matches(row) for each in self.filters):
                if asked.begin <= self.matches and (asked.end is None or self.matches < asked.end):
                    yield row
                self.matches += 1


def _print_json(query: RowQuery, asked: RowRange) -> None:
    """One JSON object, a row a line: what the file is, its metadata and its rows."""
    from tightfit.stages.audit.artifact_table import flatten_row
    from tightfit.stages.audit.cell_format import encode_json

    table, rows = query.table, query.rows(asked)
    first = list(islice(rows, 1))  # ahead of all output, since a filter may be wrong
    head = {"file": str(table.path), "artifact": table.kind, "digest": table.digest}
    head |= {"list": table.nested} if table.nested else {}
    print(f'{encode_json({**head, "metadata": table.metadata})[:-1]}, "rows": [', end="")
    before = "\n"
    for row in chain(first, rows):
        if query.columns:
            flat = flatten_row(row)
            row = {name: flat.get(name) for name in query.columns}
        print(f"{before}{encode_json(row)}", end="")
        before = ",\n"
    print("\n]}")


def _print_table(query: RowQuery, asked: RowRange, full: bool) -> None:
    """What the file is, its metadata, and a table of the rows, or the only row key by key."""
    from tightfit.stages.audit.cell_format import TableWriter, describe_metadata

    table, rows = query.table, query.rows(asked)
    first = list(islice(rows, 2))  # ahead of all output, since a filter may be wrong
    counted = "1 row" if table.count == 1 else f"{table.count:,} rows"
    nested = f"{table.nested} with " if table.nested else ""
    print(f"{table.path}: {table.kind}, {nested}{counted}, digest {table.digest}")
    for line in describe_metadata(table.metadata, full):
        print(line)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    writer = TableWriter(query.columns or table.columns, full, width)
    if len(first) == 1:
        print("\n".join(writer.record(first[0])))
    elif first:
        for line in writer.lines(first, rows):
            print(line)
    for _ in rows:  # the rest is counted
        pass
    for line in _describe_rest(query, asked, writer):
        print(line)


def _describe_rest(query: RowQuery, asked: RowRange, writer: Any) -> Iterator[str]:
    """What is not printed, and how to have it printed."""
    table, shown = query.table, writer.printed
    if not table.count:
        yield "(no rows)"
    if query.filters:
        yield f"({query.matches:,} of {table.count:,} rows match; {shown:,} shown)"
    if not query.filters and shown < query.matches:
        yield f"({shown:,} of {query.matches:,} rows shown; --rows all shows every one)"
    if writer.hidden:
        yield f"(not shown for lack of width: {', '.join(writer.hidden)}; --columns chooses)"
    if not query.columns:
        below = f"{table.nested}." if table.nested else ""
        for name, parts in table.lists.items():
            command = f"tightfit show {table.path} {below}{name}"
            yield f"({name}: records with {', '.join(parts)}; {command})"
