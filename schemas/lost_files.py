"""Files of a run that are gone: each by itself, or one of the folder that a step made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Set
from functools import cache
from pathlib import Path

from tightfit.schemas.error_logs import latest_error_log
from tightfit.schemas.lineage import LINEAGE_FOLDER, lineage_path, read_lineage
from tightfit.schemas.package_manifest import MANIFEST_NAME, read_manifest
from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline, stage_files
from tightfit.util.errors import ArtifactError

UNRECORDED_SUFFIX = ".done"
"""Marks that a step is done, of which no record is kept."""
_ARROW_END = b"ARROW1"
_PARSED_JSON_BYTES = 2**16
"""Of longer JSON files begin and end alone are looked at."""
_KIND_KEYS = {
    "plan.json": {"strategy"},
    "trace.json": {"traceEvents"},
    "guards.json": {"guards"},
    PIPELINE_FILE: {"artifact", "programs"},  # that of ranks, and that of their package
}
"""By how the name of a JSON file ends, keys of which its document has one."""
_ARTIFACT_KEYS = {"artifact"}
"""Those of all others."""
_RECORD_KEYS = {"stage"}
"""Those of the records of how files were made."""
_PAGES = ("report.html", "index.html")
_FOLDERS_TO_PAGES = 4
"""How many folders above that of an output a page may be that shows it."""


def find_lost_outputs(
    results: Path, wanted: Iterable[Path], is_known: Callable[[Path], bool]
) -> list[Path]:
    """The files and modules below a folder of results that are gone, not whole or not known, among
    those that are `wanted` and those that these were made of, by the records of how they were made.

    Pages count by themselves: their records may name plans that nobody asks for any more, and the
    index writes those of models that failed. A file that is gone is looked behind too, since its
    record is there as long as its folder is.
    """
    found: list[Path] = []
    seen: set[Path] = set()
    waiting = list(wanted)
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_relative_to(results):
            continue
        seen.add(path)
        page = path.suffix == ".html"
        if find_missing_files(path) or not (page or is_known(path)):
            found.append(path)
        if not page:
            waiting += _recorded_inputs(path)
    return sorted(found)


def find_missing_files(output: Path) -> list[Path]:
    """What is missing of what a step made: the file itself, which may be there and be damaged,
    files of the module that it is or of the stages that it names, or the record of how it was made;
    none if it is whole."""
    if not output.exists() or _is_damaged(output):
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
    return [file for file in files if not file.exists() or _is_damaged(file)]


def _is_damaged(file: Path) -> bool:
    """Whether an Arrow file lacks its end, or what should be JSON is none or of another kind."""
    if file.suffix not in (".arrow", ".json") or not file.is_file():
        return False
    with file.open("rb") as content:
        size = content.seek(0, os.SEEK_END)
        content.seek(max(size - len(_ARROW_END), 0))
        end = content.read()
        content.seek(0)
        if file.suffix == ".arrow":
            return end != _ARROW_END
        if size > _PARSED_JSON_BYTES:
            return content.read(1) != b"{" or not end.rstrip().endswith(b"}")
        read = content.read()
    try:
        document = json.loads(read)
    except ValueError:
        return True
    return not isinstance(document, dict) or _kind_keys(file).isdisjoint(document)


def _kind_keys(file: Path) -> Set[str]:
    """Keys of which a JSON document has one, by its path."""
    if file.parent.name == LINEAGE_FOLDER:
        return _RECORD_KEYS
    named = (keys for name, keys in _KIND_KEYS.items() if file.name.endswith(name))
    return next(named, _ARTIFACT_KEYS)


def was_made(output: Path) -> bool:
    """Whether a step made an output before, even if the output is gone, also with its folder, and
    none failed there since: that of a step that fails is gone too."""
    made = lineage_path(output).exists() or _is_shown_folder(output.parent)
    return made and not any(map(latest_error_log, output.parents[:2]))


def _is_shown_folder(folder: Path) -> bool:
    """Whether the records of a folder are gone, and a page above it was made of files in it."""
    if (folder / LINEAGE_FOLDER).exists():
        return False
    for above in folder.parents[:_FOLDERS_TO_PAGES]:
        for page in _PAGES:
            record = lineage_path(above / page)
            if record.exists() and _normal_path(folder) in _shown_folders(
                above / page, record.stat().st_mtime_ns
            ):
                return True
    return False


@cache
def _shown_folders(page: Path, _changed: int) -> Set[Path]:
    """The folders of all that a page was made of, by a record that was written at a time."""
    return {folder for path in _recorded_inputs(page) for folder in path.parents}


def _normal_path(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _recorded_inputs(path: Path) -> list[Path]:
    """The files that one was made of; none if its record is gone or damaged."""
    try:
        inputs = read_lineage(path).inputs
    except ArtifactError:
        return []
    return [_normal_path(path.parent / entry.path) for entry in inputs]
