"""`lineage`: how a file of a run was made, and what it was made of, down to the model's source."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tightfit.schemas import store
from tightfit.schemas.lineage import LineageRecord, lineage_path, path_digest, read_lineage
from tightfit.schemas.package_manifest import MANIFEST_NAME, read_manifest
from tightfit.schemas.pipeline_plan import PipelinePlan, is_pipeline_plan, read_pipeline_plan
from tightfit.schemas.plan import Plan, read_plan
from tightfit.util.errors import ArtifactError

INDENT = "    "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "file", type=Path, help="an Arrow file, a plan.json, a module or a page of a run"
    )


def run(options: argparse.Namespace) -> None:
    """Prints the tree; raises ArtifactError where nothing is known of the file."""
    print("\n".join(lineage_tree(_artifact_root(options.file))))


def lineage_tree(file: Path) -> list[str]:
    """Lines on a file, what made it with which settings, and the same of all that it was made of,
    further in. What was told of a file once is not repeated."""
    told = _LineagePrinter()
    lines = list(told.file(file, "", None))
    if not told.known:
        raise ArtifactError(f"{file}: there is no record of how it was made")
    return lines


def _artifact_root(path: Path) -> Path:
    """The module that a file is in, or the file itself."""
    return path.parent if (path.parent / MANIFEST_NAME).is_file() else path


@dataclass
class _LineagePrinter:
    files: set[Path] = field(default_factory=set)
    known: bool = False

    def file(self, path: Path, indent: str, read: str | None) -> Iterator[str]:
        """Lines on a file, which had the digest `read` when something was made of it."""
        place = _relative_path(path)
        if not path.exists():
            yield f"{indent}{place}  {read or ''}  (not there any more)"
            return
        found = path_digest(path)
        note = "" if read in (None, found) else f"  (was {read} when it was read)"
        shown = path.resolve() in self.files
        yield f"{indent}{place}  {found}{note}{'  (see above)' if shown else ''}"
        if shown:
            return
        self.files.add(path.resolve())
        yield from (f"{indent}{INDENT}{line}" for line in self.own(path))
        if lineage_path(path).exists():
            self.known = True
            record = read_lineage(path)
            yield from (f"{indent}{INDENT}{line}" for line in _describe_record(record, found))
            for entry in record.inputs:
                yield from self.file(path.parent / entry.path, indent + INDENT, entry.digest)

    def own(self, path: Path) -> Iterator[str]:
        """What a file says of itself."""
        if path.is_dir():
            made_from = read_manifest(path)
            self.known = True
            for name in ("graph", "schedule", "plan"):
                yield f"says: {name} {getattr(made_from, name)}"
        elif path.suffix == ".arrow":
            header = store.read_header(path)
            self.known = self.known or "code" in header.metadata
            said = {"kind": f"{header.name}/{header.version}", **header.metadata}
            yield f"says: {_format_pairs(said)}"
        elif path.name == "plan.json":
            yield f"says: {_format_pairs(_plan_facts(path))}"


def _plan_facts(path: Path) -> dict[str, Any]:
    """What a plan for a budget, or of a pipeline, says of itself."""
    plan: Plan | PipelinePlan
    if is_pipeline_plan(path):
        plan = read_pipeline_plan(path)
        asked = {"machine": plan.machine}
    else:
        plan = read_plan(path)
        asked = {"budget": plan.budget}
    return {"strategy": plan.strategy, **asked, "status": plan.status, "solver": plan.solver}


def _describe_record(record: LineageRecord, found: str) -> Iterator[str]:
    if record.digest != found:
        yield f"the record is about another file, {record.digest}"
    source = f", model's source {record.source}" if record.source else ""
    yield f"made by: {record.stage}, code {record.code}{source}"
    if record.settings:
        yield f"settings: {_format_pairs(record.settings)}"
    yield f"versions: {', '.join(f'{name} {value}' for name, value in record.versions.items())}"


def _format_pairs(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={_format_value(value)}" for name, value in values.items() if value != ""
    )


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _relative_path(path: Path) -> Path:
    """A path without its detours, relative to the current folder where it is below it."""
    plain = path.resolve()
    return plain.relative_to(Path.cwd()) if plain.is_relative_to(Path.cwd()) else plain
