"""Checks all files of a folder of results, each by itself and against those it belongs to."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas import store
from tightfit.schemas.error_logs import failed_step_logs, read_error
from tightfit.schemas.frontier import TIME_TOLERANCE, read_frontier
from tightfit.schemas.lineage import (
    LINEAGE_FOLDER,
    lineage_path,
    path_digest,
    read_lineage,
    recorded_file,
    relative_path,
)
from tightfit.schemas.machine import read_machine
from tightfit.schemas.measurement import FAILED_STATUS, Measurement, read_measurement
from tightfit.schemas.optimizer_plan import read_optimizer_costs
from tightfit.schemas.package_manifest import MANIFEST_NAME
from tightfit.schemas.pipeline import PIPELINE_FILE, is_pipeline, read_pipeline
from tightfit.schemas.pipeline_measurement import PipelineMeasurement, read_pipeline_measurement
from tightfit.schemas.pipeline_plan import is_pipeline_plan, read_pipeline_plan
from tightfit.schemas.plan import Plan, read_plan
from tightfit.schemas.schedule import schedule_optimizer_plan
from tightfit.stages.audit.artifact_kinds import ARTIFACT_READERS
from tightfit.stages.audit.pipeline_checks import (
    RANKS_FOLDER,
    check_pipeline_files,
    check_pipeline_measurement,
)
from tightfit.stages.audit.plan_checks import (
    PlanFiles,
    check_plan_files,
    is_chain_plan,
    read_cached,
)
from tightfit.util.budget import NO_BUDGET
from tightfit.util.errors import ArtifactError, TightfitError

MEASUREMENT_FILE = "measurement.arrow"


@dataclass(frozen=True)
class _KnownPlan:
    """A plan that is known to run: its peak in bytes, its seconds, and the file that has it."""

    peak: int
    seconds: float
    path: Path


def check_bounds(plans: Sequence[PlanFiles]) -> Iterator[str]:
    """What is wrong with the bounds of plans, a sentence each."""
    steps: dict[tuple[Path | None, Path | None], list[PlanFiles]] = defaultdict(list)
    for files in plans:
        if files.plan.feasible and files.plan.time is not None and not is_chain_plan(files):
            yield from _check_own_bound(files.path, files.plan)
            if not _has_updates(files):
                steps[files.graph, files.costs].append(files)
    for group in steps.values():
        known = [*_known_plans(group), *_known_points(group)]
        for files in group:
            yield from _find_refutation(files, known)


def largest_gap(plans: Sequence[PlanFiles]) -> float | None:
    """The largest gap to its bound of a plan for a budget, None where no plan has one."""
    asked = [files.plan for files in plans if files.plan.budget != NO_BUDGET]
    return max((plan.gap for plan in asked if plan.gap is not None), default=None)


def _check_own_bound(path: Path, plan: Plan) -> Iterator[str]:
    if plan.lower_bound is None or plan.gap is None:
        yield f"{path}: says no bound of its time"
    elif plan.time is not None and plan.lower_bound > plan.time * (1 + TIME_TOLERANCE):
        yield f"{path}: its time of {plan.time} s is below its lower bound, {plan.lower_bound} s"
    elif plan.status == "optimal" and plan.gap > TIME_TOLERANCE:
        yield f"{path}: is optimal, and {plan.gap} of its time is above its lower bound"


def _find_refutation(files: PlanFiles, known: Sequence[_KnownPlan]) -> Iterator[str]:
    """A plan that no budget of this one's keeps out, and that is faster than its bound allows."""
    plan = files.plan
    within = plan.peak if plan.budget_bytes is None else plan.budget_bytes
    if within is None or plan.lower_bound is None:
        return
    for other in known:
        if other.peak <= within and other.seconds * (1 + TIME_TOLERANCE) < plan.lower_bound:
            yield (
                f"{files.path}: its lower bound is {plan.lower_bound} s, where a plan of "
                f"{other.peak} bytes in {other.path.parent.name}/{other.path.name} takes "
                f"{other.seconds} s"
            )
            return


def _known_plans(group: Sequence[PlanFiles]) -> Iterator[_KnownPlan]:
    for files in group:
        if (
            files.plan.peak is not None
            and files.plan.time is not None
            and _has_no_transfers(files.plan)
        ):
            yield _KnownPlan(files.plan.peak, files.plan.time, files.path)


def _known_points(group: Sequence[PlanFiles]) -> Iterator[_KnownPlan]:
    """The points of frontiers; one that cannot be read is told elsewhere."""
    for path in sorted({files.frontier for files in group if files.frontier is not None}):
        try:
            frontier = read_cached(read_frontier, path)
        except TightfitError:
            continue
        for point in frontier.points:
            if not point.transfers:
                yield _KnownPlan(point.peak, point.seconds, path)


def _has_no_transfers(plan: Plan) -> bool:
    """Whether nothing is sent: bounds of plans without a link hold for such plans alone."""
    return plan.transfers is None


def _has_updates(files: PlanFiles) -> bool:
    """Whether a step has updates of its optimizer, whose time others lack."""
    try:
        return files.schedule is not None and schedule_optimizer_plan(files.schedule) is not None
    except TightfitError:
        return True


JSON_READERS: dict[str, Callable[[Path], object]] = {
    "machine.json": read_machine,
    "updates.json": read_optimizer_costs,
}
"""The readers of documents that plans are made from, by the name of the file."""


@dataclass(frozen=True)
class AuditResult:
    """What is wrong, a sentence each that begins with the file, how much was looked at, the largest
    gap to its bound of a plan for a budget, None where no plan has one, and the measurements by
    which a plan `failed`, a sentence each. Of the plans so many are `infeasible`."""

    complaints: list[str]
    counts: dict[str, int]
    gap: float | None = None
    failed: Sequence[str] = ()
    infeasible: int = 0


def audit(folder: Path, left_over: Collection[Path] = ()) -> AuditResult:
    """Checks every artifact, plan, module, measurement and record below a folder, and names each
    step that failed.

    A damaged file is told once: what depends on it is not looked at. Nor are the folders that are
    `left_over`. Raises ArtifactError where the folder does not exist or holds no results.
    """
    if folder.is_file():
        raise ArtifactError(f"{folder}: is a file: name its folder, {folder.parent}")
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: there is no such directory of results")
    found = _RunFiles.of(folder, [path.resolve() for path in left_over])
    if not found.artifacts and not found.plans and not found.failed_steps:
        raise ArtifactError(
            f"{folder}: holds no results of a run: name the folder that the key results of its "
            "configuration names"
        )
    complaints: dict[Path, str] = {}
    for path, read in found.readers():
        try:
            read(path)
        except ArtifactError as error:
            complaints[path] = str(error)
    damaged = set(complaints)
    sentences = [*complaints.values(), *map(_describe_failed_step, found.failed_steps)]
    sound = [path for path in found.plans if path not in damaged]
    pipelines = {path: read_pipeline_plan(path) for path in sound if is_pipeline_plan(path)}
    plans = [PlanFiles.of(path, damaged) for path in sound if path not in pipelines]
    for files in plans:
        sentences += check_plan_files(files)
    sentences += check_bounds(plans)
    for path in set(found.pipelines) - damaged:
        sentences += check_pipeline_files(path, damaged)
    for path in set(found.measured) - damaged:
        sentences += check_pipeline_measurement(path, damaged)
    sentences += _check_records(found, damaged)
    failed = [*_failed_measurements(found, damaged)]
    gap = largest_gap(plans)
    unfit = [files for files in plans if not files.plan.feasible]
    unfit_pipelines = [plan for plan in pipelines.values() if plan.status == "infeasible"]
    infeasible = len(unfit) + len(unfit_pipelines)
    return AuditResult(list(dict.fromkeys(sentences)), found.counts(), gap, failed, infeasible)


@dataclass(frozen=True)
class _RunFiles:
    artifacts: list[Path]
    plans: list[Path]
    modules: list[Path]
    pages: list[Path]
    records: list[Path]
    left_over: list[Path]
    pipelines: list[Path]
    measured: list[Path]
    documents: list[Path]
    failed_steps: list[Path]

    @classmethod
    def of(cls, folder: Path, left_over: list[Path]) -> _RunFiles:
        """All files of a run, by kind; those being written have names that begin with a dot."""
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if _is_visible(path.relative_to(folder)) and not _is_below(path, left_over)
        ]
        modules = [path.parent for path in files if path.name == MANIFEST_NAME]
        return cls(
            artifacts=[path for path in files if path.suffix == ".arrow"],
            plans=[
                path for path in files if path.name == "plan.json" and path.parent not in modules
            ],
            modules=modules,
            pages=[path for path in files if path.name in ("report.html", "index.html")],
            records=[path for path in files if path.parent.name == LINEAGE_FOLDER],
            left_over=left_over,
            pipelines=[
                path
                for path in files
                if path.name == PIPELINE_FILE
                and (path.parent.name == RANKS_FOLDER or is_pipeline(path.parent))
            ],
            measured=[path for path in files if path.name == "measurement.json"],
            documents=[
                path for path in files if path.name in JSON_READERS and lineage_path(path).exists()
            ],
            failed_steps=failed_step_logs(files),
        )

    def readers(self) -> Iterable[tuple[Path, Callable[[Path], object]]]:
        """Each file with what reads it."""
        yield from ((path, _read_artifact) for path in self.artifacts)
        for path in self.plans:
            yield path, read_pipeline_plan if is_pipeline_plan(path) else read_plan
        yield from ((path, read_pipeline) for path in self.pipelines)
        yield from ((path, read_pipeline_measurement) for path in self.measured)
        yield from ((path, JSON_READERS[path.name]) for path in self.documents)

    def counts(self) -> dict[str, int]:
        """How many there are of each kind, by its name in the singular."""
        measured = sum(path.name == MEASUREMENT_FILE for path in self.artifacts)
        return {
            "artifact": len(self.artifacts),
            "plan": len(self.plans),
            "module": len(self.modules),
            "measurement": measured + len(self.measured),
            "record": len(self.records),
        }


def _failed_measurements(found: _RunFiles, damaged: Collection[Path]) -> Iterator[str]:
    """The measurements that contradict their plans, with what they say."""
    sources: list[tuple[Path, Callable[[Path], Measurement | PipelineMeasurement]]] = [
        *((path, read_measurement) for path in found.artifacts if path.name == MEASUREMENT_FILE),
        *((path, read_pipeline_measurement) for path in found.measured),
    ]
    for path, read in sources:
        if path not in damaged and (measured := read(path)).status == FAILED_STATUS:
            yield f"{path}: the plan failed: {measured.message}"


def _describe_failed_step(log: Path) -> str:
    """The log of a step that failed, with the first line of its error."""
    return f"{log}: the step failed: {read_error(log).splitlines()[0]}"


def _is_below(path: Path, folders: Collection[Path]) -> bool:
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def _is_visible(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _read_artifact(path: Path) -> None:
    name = store.read_header(path).name
    if name not in ARTIFACT_READERS:
        raise ArtifactError(f"{path}: is a {name!r}, which this program does not know")
    ARTIFACT_READERS[name](path)


def _check_records(found: _RunFiles, damaged: set[Path]) -> list[str]:
    """What is wrong with the records of how files were made, or with the files by their records."""
    sentences: list[str] = []
    outdated: dict[Path, list[Path]] = defaultdict(list)
    made = (found.artifacts, found.plans, found.modules, found.pages, found.pipelines)
    files = [path for paths in (*made, found.measured, found.documents) for path in paths]
    for path in files:
        if (
            path not in damaged
            and not lineage_path(path).exists()
            and not _has_own_provenance(path)
        ):
            sentences.append(f"{path}: there is no record of how it was made")
    for record in found.records:
        file = recorded_file(record)
        if not file.exists():
            sentences.append(f"{file}: is gone, and the record of how it was made is still there")
        elif file not in damaged:
            try:
                said, changed = _check_record(file, damaged, found.left_over)
                sentences += said
                for path in changed:
                    outdated[path].append(file)
            except ArtifactError as error:
                sentences.append(str(error))
    return sentences + [_outdated_message(path, older) for path, older in outdated.items()]


def _outdated_message(changed: Path, made: Sequence[Path]) -> str:
    """A sentence on a file that has changed since those were `made` of it."""
    first, more = made[0], len(made) - 1
    others = f", and so {'was' if more == 1 else 'were'} {more} more" if more else ""
    return (
        f"{first}: was made of another {relative_path(changed)} than is there now{others}; run "
        "again, or name the configuration (--configuration) if it asks for this no more"
    )


def _has_own_provenance(path: Path) -> bool:
    """Whether a file says of itself how it was made, as solved blocks do, or was made bit by bit,
    as libraries of costs are."""
    return path.suffix == ".arrow" and (
        "code" in store.read_header(path).metadata or path.parent.name == "profile"
    )


def _check_record(
    file: Path, damaged: Collection[Path], left_over: Collection[Path]
) -> tuple[list[str], list[Path]]:
    """Whether a file is what its record is about, and so are the files it was made of, those of a
    store too: what is wrong, and which of these files have changed since.

    Files that are left over, are not there any more, or lie elsewhere now, say nothing against it.
    """
    record = read_lineage(file)
    if path_digest(file) != record.digest:
        return [f"{file}: was changed after it was made, by its record"], []
    sentences, outdated = list[str](), list[Path]()
    for entry in record.inputs:
        path = Path(os.path.normpath(file.parent / entry.path))
        if path in damaged or not path.exists() or _is_below(path, left_over):
            continue
        try:
            same = path_digest(path) == entry.digest
        except ArtifactError as error:
            sentences.append(str(error))
            continue
        if not same:
            outdated.append(path)
    return sentences, outdated
