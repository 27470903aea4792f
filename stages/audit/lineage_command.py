"""`lineage`: how a file of a run was made, and what it was made of, down to the model's source."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tightfit.schemas import store
from tightfit.schemas.lineage import (
    LINEAGE_FOLDER,
    LineageRecord,
    lineage_path,
    path_digest,
    read_lineage,
    real_path,
    recorded_file,
    relative_path,
)
from tightfit.schemas.package_manifest import MANIFEST_NAME, read_manifest
from tightfit.schemas.pipeline_plan import is_pipeline_plan, read_pipeline_plan
from tightfit.schemas.plan import read_plan
from tightfit.util.errors import ArtifactError

INDENT = "    "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "file", type=Path, help="an Arrow file, a plan.json, a module or a page of a run"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON: the file, and a list of all behind it",
    )


def run(options: argparse.Namespace) -> None:
    """Prints the tree. What is damaged among the files that the file was made of is said at its
    place; raises ArtifactError where nothing is known of the file itself, or it is damaged."""
    root = _artifact_root(options.file)
    if root.is_dir() and not lineage_path(root).exists() and not (root / MANIFEST_NAME).exists():
        raise ArtifactError(f"{root}: is a folder and no module, {_suggest_file(root)}")
    own = read_file_lineage(root)
    if not own.error and not own.is_known:
        raise ArtifactError(f"{root}: there is no record of how it was made")
    if options.json:
        files = [_to_json(each) for each in collect_lineage(root)]
        print(json.dumps({"file": str(relative_path(root)), "files": files}, indent=2))
    else:
        for line in lineage_tree(root):
            print(line)
    if own.error:
        raise ArtifactError(own.error)


@dataclass(frozen=True)
class FileLineage:
    """What is known of one file: its `digest` ("" if it is gone or damaged), what it `says` of
    itself, and the `record` of how it was made. `error` is what is wrong with the file or with its
    record, in a sentence that begins with a path."""

    path: Path
    digest: str = ""
    says: dict[str, Any] = field(default_factory=dict)
    record: LineageRecord | None = None
    error: str = ""

    @property
    def is_known(self) -> bool:
        """Whether there is anything on how it was made."""
        own = self.path.is_dir() or "code" in self.says
        return self.record is not None or (own and bool(self.digest))

    @property
    def inputs(self) -> Iterator[tuple[Path, str]]:
        """The files that it was made of, each with the digest that it had then."""
        for entry in self.record.inputs if self.record is not None else ():
            yield Path(os.path.normpath(self.path.parent / entry.path)), entry.digest


def read_file_lineage(path: Path) -> FileLineage:
    """What is known of a file, whatever is wrong with it."""
    errors: list[str] = []
    digest, says, record = "", {}, None
    if path.exists():
        try:
            digest, says = path_digest(path), _own_facts(path)
        except ArtifactError as error:
            errors.append(str(error))
    else:
        errors.append(f"{path}: {_describe_absence(path)}")
    if lineage_path(path).exists():
        try:
            record = read_lineage(path)
        except ArtifactError as error:
            errors.append(str(error))
    return FileLineage(path, digest, says, record, "; ".join(errors))


def _describe_absence(path: Path) -> str:
    return "is a link that leads nowhere" if path.is_symlink() else "is gone"


def _own_facts(path: Path) -> dict[str, Any]:
    """What a file says of itself, by name."""
    if path.is_dir():
        made_from = read_manifest(path)
        return {name: getattr(made_from, name) for name in ("graph", "schedule", "plan")}
    if path.suffix == ".arrow":
        header = store.read_header(path)
        return {"kind": f"{header.name}/{header.version}", **header.metadata}
    if path.name == "plan.json" and is_pipeline_plan(path):
        pipeline = read_pipeline_plan(path)
        said = {"strategy": pipeline.strategy, "machine": pipeline.machine}
        return {**said, "status": pipeline.status, "method": pipeline.solver}
    if path.name == "plan.json":
        plan = read_plan(path)
        said = {"strategy": plan.strategy, "budget": plan.budget, "status": plan.status}
        return {**said, "method": plan.solver}
    if path.suffix == ".json":
        kind = store.read_json(path).get("artifact")
        return {"kind": kind} if kind else {}
    return {}


def collect_lineage(root: Path) -> list[FileLineage]:
    """A file and all that it was made of, each once, from the file on down."""
    found: dict[Path, FileLineage] = {}
    waiting = [root]
    while waiting:
        path = waiting.pop()
        if real_path(path) not in found:
            found[real_path(path)] = each = read_file_lineage(path)
            waiting += reversed([source for source, _ in each.inputs])
    return [*found.values()]


def _to_json(each: FileLineage) -> dict[str, Any]:
    """A file as plain data, its paths as people see them."""
    made = None
    if each.record is not None:
        names = ("digest", "stage", "code", "source", "settings", "versions")
        made = {name: asdict(each.record)[name] for name in names}
    return {
        "path": str(relative_path(each.path)),
        "digest": each.digest,
        "exists": each.path.exists(),
        "error": each.error,
        "says": each.says,
        "made_by": made,
        "made_of": [
            {"path": str(relative_path(path)), "digest": digest} for path, digest in each.inputs
        ],
    }


def lineage_tree(root: Path) -> Iterator[str]:
    """Lines on a file, what made it with which settings, and the same of all that it was made of,
    further in. What was told of a file once is not repeated."""
    shown: set[Path] = set()

    def describe(path: Path, indent: str, read: str | None) -> Iterator[str]:
        """Lines on a file, which had the digest `read` when something was made of it."""
        each = read_file_lineage(path)
        repeated = real_path(path) in shown
        yield f"{indent}{_describe_file(each, read)}{'  (see above)' if repeated else ''}"
        if repeated:
            return
        shown.add(real_path(path))
        yield from (f"{indent}{INDENT}{line}" for line in _describe_origin(each))
        for source, digest in each.inputs:
            yield from describe(source, indent + INDENT, digest)

    yield from describe(root, "", None)


def _describe_file(each: FileLineage, read: str | None) -> str:
    """A file with its digest, and what is wrong with it."""
    place = relative_path(each.path)
    if not each.path.exists():
        return f"{place}  {read or ''}  ({_describe_absence(each.path)})"
    if each.error:
        return f"{place}  {each.digest or read or ''}  (damaged: {each.error})"
    note = "" if read in (None, each.digest) else f"  (was {read} when it was read)"
    return f"{place}  {each.digest}{note}"


def _describe_origin(each: FileLineage) -> Iterator[str]:
    """What a file says of itself, and what its record says."""
    if each.path.is_dir():
        yield from (f"says: {name} {digest}" for name, digest in each.says.items())
    elif each.says:
        yield f"says: {_format_pairs(each.says)}"
    record = each.record
    if record is None:
        return
    if each.digest and record.digest != each.digest:
        yield f"the record is about another file, {record.digest}"
    source = f", model's source {record.source}" if record.source else ""
    yield f"made by: {record.stage}, code {record.code}{source}"
    if record.settings:
        yield f"settings: {_format_pairs(record.settings)}"
    yield f"versions: {', '.join(f'{name} {value}' for name, value in record.versions.items())}"


def _artifact_root(path: Path) -> Path:
    """The module that a file is in, or the file itself: what a link to it leads to."""
    path = path.resolve() if path.is_symlink() and path.exists() else path
    return path.parent if (path.parent / MANIFEST_NAME).is_file() else path


def _suggest_file(folder: Path) -> str:
    """What to name instead of a folder that is no module."""
    made = map(recorded_file, sorted(folder.glob(f"**/{LINEAGE_FOLDER}/*.json")))
    known = next((path for path in made if path.exists()), None)
    return "and no file in it has a record" if known is None else f"name a file in it: {known}"


def _format_pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={_format_value(value)}" for name, value in values.items() if value != ""
    )


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
