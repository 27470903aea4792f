"""Checks all files of a folder of results, each by itself and against those it belongs to."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas import store
from tightfit.schemas.blocks import BLOCKS, read_blocks
from tightfit.schemas.chain import CHAIN, read_chain
from tightfit.schemas.costs import COSTS, read_costs
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.frontier import FRONTIER, read_frontier
from tightfit.schemas.graph import GRAPH, Graph, read_graph
from tightfit.schemas.groups import body_of, is_group
from tightfit.schemas.hierarchy import HIERARCHY, read_hierarchy
from tightfit.schemas.lanes import LANES, read_lanes
from tightfit.schemas.lineage import FOLDER, described, digest_of, read_record, record_path
from tightfit.schemas.measurement import LINE, MEASUREMENT, read_line, read_measurement
from tightfit.schemas.module import MADE_FROM
from tightfit.schemas.options import OPTIONS, read_options
from tightfit.schemas.pattern import PATTERN, read_pattern
from tightfit.schemas.pipeline import FILE, is_pipeline, read_pipeline
from tightfit.schemas.pipeline_measurement import read_pipeline_measurement
from tightfit.schemas.pipeline_plan import is_pipeline_plan, read_pipeline_plan
from tightfit.schemas.plan import read_plan
from tightfit.schemas.reference import REFERENCE, read_reference
from tightfit.schemas.schedule import SCHEDULE, read_schedule
from tightfit.schemas.sequence import SEQUENCE, read_sequence
from tightfit.stages.audit.bounds import bound_complaints, largest_gap
from tightfit.stages.audit.plan_files import PlanFiles, complaints_of


def read_whole_graph(path: Path) -> Graph:
    """A graph whose groups have the bodies that their targets name."""
    graph = read_graph(path)
    for op in graph.all_ops:
        if is_group(op.target):
            try:
                body_of(op)
            except ArtifactError as error:
                raise ArtifactError(f"{path}: {error}") from error
    return graph


READERS: dict[str, Callable[[Path], object]] = {
    BLOCKS.name: read_blocks,
    CHAIN.name: read_chain,
    COSTS.name: read_costs,
    FRONTIER.name: read_frontier,
    GRAPH.name: read_whole_graph,
    HIERARCHY.name: read_hierarchy,
    LANES.name: read_lanes,
    LINE.name: read_line,
    MEASUREMENT.name: read_measurement,
    OPTIONS.name: read_options,
    PATTERN.name: read_pattern,
    REFERENCE.name: read_reference,
    SCHEDULE.name: read_schedule,
    SEQUENCE.name: read_sequence,
}
"""The reader of each kind of artifact, which checks all that can be checked of it alone."""


@dataclass(frozen=True)
class Audit:
    """What is wrong, a sentence each that begins with the file, how much was looked at, and the
    largest gap to its bound of a plan for a budget, None where no plan has one."""

    complaints: list[str]
    counts: dict[str, int]
    gap: float | None = None


def audit(folder: Path, left_over: Collection[Path] = ()) -> Audit:
    """Checks every artifact, plan, module, measurement and record below a folder.

    A damaged file is told once: what depends on it is not looked at. Nor are the folders that are
    `left_over`. Raises ArtifactError where
    the folder does not exist or holds no results.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: there is no such directory of results")
    found = _Found.of(folder, [path.resolve() for path in left_over])
    if not found.artifacts and not found.plans:
        raise ArtifactError(f"{folder}: holds no results of a run")
    complaints: dict[Path, str] = {}
    for path, read in found.readers():
        try:
            read(path)
        except ArtifactError as error:
            complaints[path] = str(error)
    damaged = set(complaints)
    sentences = list(complaints.values())
    plans = [
        PlanFiles.of(plan, damaged)
        for plan in found.plans
        if plan not in damaged and not is_pipeline_plan(plan)
    ]
    for files in plans:
        sentences += complaints_of(files)
    sentences += bound_complaints(plans)
    sentences += _records(found, damaged)
    return Audit(list(dict.fromkeys(sentences)), found.counts(), largest_gap(plans))


@dataclass(frozen=True)
class _Found:
    artifacts: list[Path]
    plans: list[Path]
    modules: list[Path]
    pages: list[Path]
    records: list[Path]
    left_over: list[Path]
    pipelines: list[Path]
    measured: list[Path]

    @classmethod
    def of(cls, folder: Path, left_over: list[Path]) -> _Found:
        """All files of a run, by kind; those being written have names that begin with a dot."""
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if _shown(path.relative_to(folder)) and not _is_below(path, left_over)
        ]
        return cls(
            artifacts=[path for path in files if path.suffix == ".arrow"],
            plans=[path for path in files if path.name == "plan.json"],
            modules=[path.parent for path in files if path.name == MADE_FROM],
            pages=[path for path in files if path.name in ("report.html", "index.html")],
            records=[path for path in files if path.parent.name == FOLDER],
            left_over=left_over,
            pipelines=[path for path in files if path.name == FILE and is_pipeline(path.parent)],
            measured=[path for path in files if path.name == "measurement.json"],
        )

    def readers(self) -> Iterable[tuple[Path, Callable[[Path], object]]]:
        """Each file with what reads it."""
        yield from ((path, _read_artifact) for path in self.artifacts)
        for path in self.plans:
            yield path, read_pipeline_plan if is_pipeline_plan(path) else read_plan
        yield from ((path, read_pipeline) for path in self.pipelines)
        yield from ((path, read_pipeline_measurement) for path in self.measured)

    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        measured = sum(path.name == "measurement.arrow" for path in self.artifacts)
        return {
            "artifacts": len(self.artifacts),
            "plans": len(self.plans),
            "modules": len(self.modules),
            "measurements": measured,
            "records": len(self.records),
        }


def _is_below(path: Path, folders: Collection[Path]) -> bool:
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def _shown(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _read_artifact(path: Path) -> None:
    name = store.header(path).name
    if name not in READERS:
        raise ArtifactError(f"{path}: is a {name!r}, which this program does not know")
    READERS[name](path)


def _records(found: _Found, damaged: set[Path]) -> list[str]:
    """What is wrong with the records of how files were made, or with the files by their records."""
    sentences = []
    files = [*found.artifacts, *found.plans, *found.modules, *found.pages]
    for path in files:
        if path not in damaged and not record_path(path).exists() and not _of_a_store(path):
            sentences.append(f"{path}: there is no record of how it was made")
    for record in found.records:
        file = described(record)
        if not file.exists():
            sentences.append(f"{file}: is gone, and the record of how it was made is still there")
        elif file not in damaged:
            try:
                sentences += _against_record(file, damaged, found.left_over)
            except ArtifactError as error:
                sentences.append(str(error))
    return sentences


def _of_a_store(path: Path) -> bool:
    """Whether a file says of itself how it was made, as solved blocks do, or was made bit by bit,
    as libraries of costs are."""
    return path.suffix == ".arrow" and (
        "code" in store.header(path).metadata or path.parent.name == "profile"
    )


def _against_record(
    file: Path, damaged: Collection[Path], left_over: Collection[Path]
) -> list[str]:
    """Whether a file is what its record is about, and so are the files it was made of, those of a
    store too.

    Files that are left over, are not there any more, or lie elsewhere now, say nothing against it.
    """
    record = read_record(file)
    if digest_of(file) != record.digest:
        return [f"{file}: was changed after it was made, by its record"]
    sentences = []
    for entry in record.inputs:
        path = Path(os.path.normpath(file.parent / entry.path))
        if path in damaged or not path.exists() or _is_below(path, left_over):
            continue
        try:
            same = digest_of(path) == entry.digest
        except ArtifactError as error:
            sentences.append(str(error))
            continue
        if not same:
            sentences.append(f"{file}: was made of another {entry.path} than is there now")
    return sentences
