"""Files of a run that are gone: each by itself, or one of the folder that a step made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from tightfit.schemas.error_logs import latest_error_log
from tightfit.schemas.lineage import lineage_path, read_lineage
from tightfit.schemas.package_manifest import MANIFEST_NAME, read_manifest
from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline, stage_files
from tightfit.util.errors import ArtifactError

UNRECORDED_SUFFIX = ".done"
"""Marks that a step is done, of which no record is kept."""
_ARROW_END = b"ARROW1"
_PARSED_JSON_BYTES = 2**16
"""Of longer JSON files the end alone is looked at."""


def find_lost_outputs(results: Path, wanted: Iterable[Path]) -> list[Path]:
    """The files and modules below a folder of results that are gone or not whole, among those that
    are `wanted` and those that these were made of, by the records of how they were made.

    Pages count by themselves: their records may name plans that nobody asks for any more. A file
    that is gone is looked behind too, since its record is there as long as its folder is.
    """
    found: list[Path] = []
    seen: set[Path] = set()
    waiting = list(wanted)
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_relative_to(results):
            continue
        seen.add(path)
        if find_missing_files(path):
            found.append(path)
        if path.suffix != ".html":
            waiting += _recorded_inputs(path)
    return sorted(found)


def find_missing_files(output: Path) -> list[Path]:
    """What is missing of what a step made: the file itself, which may be there and be cut off or no
    JSON, files of the module that it is or of the stages that it names, or the record of how it was
    made; none if it is whole."""
    if not output.exists() or _is_cut_off(output):
        return [output]
    try:
        files = [lineage_path(output)] if output.suffix != UNRECORDED_SUFFIX else []
        if output.is_dir():
            files += [output / name for name in read_manifest(output).files]
        elif output.name == PIPELINE_FILE:
            stages = stage_files(output.parent, read_pipeline(output))
            files += [*stages, *map(lineage_path, stages)]
    except ArtifactError:  # what names the files is gone or damaged
        return [output / MANIFEST_NAME if output.is_dir() else output]
    return [file for file in files if not file.exists() or _is_cut_off(file)]


def _is_cut_off(file: Path) -> bool:
    """Whether an Arrow file lacks its end, or what should be JSON is none."""
    if file.suffix not in (".arrow", ".json") or not file.is_file():
        return False
    with file.open("rb") as content:
        size = content.seek(0, os.SEEK_END)
        parsed = file.suffix == ".json" and size <= _PARSED_JSON_BYTES
        content.seek(0 if parsed else max(size - len(_ARROW_END), 0))
        read = content.read()
    if file.suffix == ".arrow":
        return read != _ARROW_END
    if not parsed:
        return not read.rstrip().endswith((b"}", b"]"))
    try:
        json.loads(read)
    except ValueError:
        return True
    return False


def was_made(output: Path) -> bool:
    """Whether a step made an output before, even if the output is gone, and none failed there
    since: that of a step that fails is gone too."""
    made = lineage_path(output).exists()
    return made and not any(map(latest_error_log, output.parents[:2]))


def _recorded_inputs(path: Path) -> list[Path]:
    """The files that one was made of; none if its record is gone or damaged."""
    try:
        inputs = read_lineage(path).inputs
    except ArtifactError:
        return []
    return [Path(os.path.normpath(path.parent / entry.path)) for entry in inputs]
