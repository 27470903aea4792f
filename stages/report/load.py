"""Reads what the other stages left in a results directory. What is not there is None: a model that
failed, a budget that no plan meets and a plan not yet measured all still have a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tightfit.schemas.block_options import BlockOption, read_block_options
from tightfit.schemas.blocks import Blocks, read_blocks
from tightfit.schemas.config import EAGER_FOLDER
from tightfit.schemas.config_chains import CHAINS_FOLDER
from tightfit.schemas.costs import Costs, ProfileDevice, read_costs, read_profile_device
from tightfit.schemas.error_logs import (
    STRATEGY_STAGES,
    latest_error,
    latest_error_log,
    model_error_log,
    read_error,
    upstream_error,
)
from tightfit.schemas.frontier import Frontier, read_frontier
from tightfit.schemas.graph.training_graph import Graph, has_fused_kernels, read_graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.measurement import (
    Measurement,
    TimelinePoint,
    read_measurement,
    read_memory_timeline,
)
from tightfit.schemas.optimizer_plan import OPTIMIZER_OFFLOAD, SAMPLE_FOLDER, OptimizerPlan
from tightfit.schemas.plan import Plan, read_plan
from tightfit.schemas.schedule import (
    ScheduleStep,
    find_sample_graph,
    read_schedule,
    schedule_link,
    schedule_optimizer_plan,
)
from tightfit.schemas.sequence import ChainOperation, read_sequence
from tightfit.stages.report.result_files import (
    PlannedPoints,
    frontier_files,
    index_files,
    point_files,
)
from tightfit.util.errors import ArtifactError
from tightfit.util.strategies import KEEP_ALL, STRATEGIES

T = TypeVar("T")

MODEL_PAGE_FILE = "report.html"
"""The page of a model, in the model's folder."""
NOT_PLANNED_YET = (
    "the run ended before this was planned, and no step says why: another one goes on from there"
)
"""What is told of a plan that is not there, where no log of what it waits for has an error."""


@dataclass(frozen=True)
class SampleResults:
    """What was found out of a further sample of a whole step: its graph and costs."""

    graph: Graph
    costs: Costs | None


@dataclass(frozen=True)
class PlanResult:
    """One point of a run: a plan with what was made of it. `folder` is strategy/budget; `error` is
    the message of the stage that failed for it, or of one before it that failed since; `described`
    is the device that it was planned for without being run there. `link` and `updates` are those of
    its schedule; `sample` is that of a whole step, where it is not the model's first one. Where the
    kernels of a plan are `fused`, `pace` is what their keep-all step takes of the original's time,
    as measured, 1 where it is not."""

    plan: Plan
    folder: str
    steps: list[ScheduleStep] | None
    sequence: list[ChainOperation]
    measurement: Measurement | None
    line: list[TimelinePoint] | None
    error: str
    described: ProfileDevice | None = None
    link: HostLink | None = None
    updates: OptimizerPlan | None = None
    fused: bool = False
    pace: float = 1.0
    sample: SampleResults | None = None

    @property
    def relative(self) -> float | None:
        """The predicted time beside the original's, None where there is none."""
        if self.plan.time is None or self.plan.keep_all.time <= 0:
            return None
        return self.pace * self.plan.time / self.plan.keep_all.time

    @property
    def slower_than_predicted(self) -> float | None:
        """The measured time beside the original's where it shows as more than what was predicted,
        else None."""
        found, predicted = self.measurement, self.relative
        ratio = None if found is None else found.time_ratio
        if ratio is None or predicted is None or round(ratio, 2) <= round(predicted, 2):
            return None
        return ratio


@dataclass(frozen=True)
class ModelResults:
    """All that a run found out about one model. `error` is the message of a stage that failed for
    the whole model, `failures` those for a strategy or a point that has no plan, by folder;
    `damaged` those for a point of which a file cannot be read; `digests` are those of the artifacts
    by file. Where kernels are fused, `beside` is what was planned with eager's. It is `shown` where
    it has a page. `planned` are its points in the order of the configuration, if that is known."""

    name: str
    error: str
    failures: dict[str, str]
    graph: Graph | None
    costs: Costs | None
    blocks: Blocks | None
    options: dict[str, list[BlockOption]]
    frontiers: dict[str, Frontier]
    plans: list[PlanResult]
    digests: dict[str, str]
    beside: EagerResults | None = None
    shown: bool = False
    damaged: dict[str, str] = field(default_factory=dict)
    planned: tuple[str, ...] = ()

    @property
    def pace(self) -> float:
        """The pace of its own kernels."""
        return next((result.pace for result in self.plans if result.fused), 1.0)

    def graph_of(self, result: PlanResult) -> Graph | None:
        """The graph that a plan is of, None where it is not there."""
        if result.sample is not None:
            return result.sample.graph
        return self.beside.graph if self.is_eager_fallback(result) and self.beside else self.graph

    def costs_of(self, result: PlanResult) -> Costs | None:
        """The costs of that graph, None where they are not there."""
        if result.sample is not None:
            return result.sample.costs
        return self.beside.costs if self.is_eager_fallback(result) and self.beside else self.costs

    def is_eager_fallback(self, result: PlanResult) -> bool:
        """Whether a plan is one of eager's kernels where fused ones were asked for."""
        return self.beside is not None and result.plan.kernels == "eager"


@dataclass(frozen=True)
class EagerResults:
    """What was planned with eager's kernels beside fused ones: the graph, its costs, and the
    frontiers by strategy."""

    graph: Graph | None
    costs: Costs | None
    frontiers: dict[str, Frontier]


def load_model_results(
    folder: Path | str,
    whole: bool = True,
    planned: Iterable[str] | None = None,
    curves: bool = True,
) -> ModelResults:
    """The results of one model; raises ArtifactError for a damaged file and for a directory that
    holds nothing of a run. Without `whole`, only what an index needs: frontiers and plans without
    schedules. Where points are `planned`, by folder, there are no others, and each that has no plan
    is a failure. Without `curves` frontiers are those of baselines alone."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: there is no such directory of results")
    points = None if planned is None else set(planned)
    plans = point_files(folder, "plan.json", points)
    error = read_error(latest_error_log(folder, without=STRATEGY_STAGES))
    described = _read_described_device(folder)
    if not _has_model_results(folder):
        raise ArtifactError(f"{folder}: holds no results of a model")
    return ModelResults(
        name=folder.name,
        error=error,
        failures=_failures(folder, points),
        graph=_read_if_exists(folder / "graph.arrow", read_graph) if whole else None,
        costs=_read_if_exists(folder / "costs.arrow", read_costs) if whole else None,
        blocks=_read_if_exists(folder / "blocks.arrow", read_blocks) if whole else None,
        options=(_read_if_exists(folder / "options.arrow", read_block_options) or {})
        if whole
        else {},
        frontiers=_read_frontiers(folder, curves, points),
        plans=_set_fused_pace(
            folder, [_read_plan_result(path.parent, whole, described) for path in plans]
        ),
        digests=_digests(folder, points) if whole else {},
        beside=_read_eager_results(folder / EAGER_FOLDER, whole, curves, points)
        if _is_fused(folder)
        else None,
        shown=(folder / MODEL_PAGE_FILE).exists(),
    )


def load_readable_results(
    folder: Path, planned: Iterable[str] | None = None, curves: bool = True
) -> ModelResults:
    """The results of one model without what pages alone show, as far as they can be read: if a file
    is damaged, those of the points that are not `damaged` themselves."""
    points = None if planned is None else set(planned)
    try:
        return load_model_results(folder, whole=False, planned=points, curves=curves)
    except ArtifactError as error:
        plans, damaged, said = list[PlanResult](), dict[str, str](), str(error)
    for path in point_files(folder, "plan.json", points):
        point = str(path.parent.relative_to(folder))
        try:
            plans += load_model_results(folder, whole=False, planned=[point]).plans
        except ArtifactError as error:
            damaged[point] = str(error)
    said, failures = "" if damaged else said, _failures(folder, points)
    found = ModelResults(folder.name, said, failures, None, None, None, {}, {}, plans, {})
    return replace(found, shown=(folder / MODEL_PAGE_FILE).exists(), damaged=damaged)


def load_run_results(
    folder: Path | str,
    planned: PlannedPoints | None = None,
    curves: bool = True,
    strict: bool = True,
) -> list[ModelResults]:
    """The results of all models of a run, by name, without their large artifacts. Where points are
    `planned`, by model, there are no other models, and these are in that order. Of one of which a
    file is damaged there is what can be read, which is raised if `strict`. `curves` are as in
    `load_model_results`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: there is no such directory of results")
    found = []
    for path in _model_folders(folder, planned):
        points = None if planned is None else planned[path.name]
        if strict:
            results = load_model_results(path, whole=False, planned=points, curves=curves)
        else:
            results = load_readable_results(path, points, curves)
        found.append(replace(results, planned=tuple(points or ())))
    return found


def _model_folders(folder: Path, planned: PlannedPoints | None) -> list[Path]:
    """The folders of the models that are planned, in that order, of all if that is not said."""
    known = sorted(path for path in folder.iterdir() if path.name != CHAINS_FOLDER)
    named = known if planned is None else [folder / name for name in planned]
    return [*filter(_has_model_results, named)]


def model_result_files(
    folder: Path | str, curves: bool = True, planned: Iterable[str] | None = None
) -> list[Path]:
    """The artifacts and plans that `load_model_results` reads; logs of errors are none."""
    folder, points = Path(folder), None if planned is None else set(planned)
    names = ("graph.arrow", "blocks.arrow", "options.arrow", f"{EAGER_FOLDER}/graph.arrow")
    samples = [f"{SAMPLE_FOLDER}*/{name}" for name in ("graph.arrow", "costs.arrow")]
    own = [path for name in (*names, *samples) for path in folder.glob(name)]
    for name in ("schedule.arrow", "sequence.arrow", "memory_timeline.arrow"):
        own += point_files(folder, name, points)
    return sorted([*index_files(folder, curves, points), *own])


def run_result_files(
    folder: Path | str, curves: bool = True, planned: PlannedPoints | None = None
) -> list[Path]:
    """The artifacts and plans that `load_run_results` reads."""
    points = planned or {}
    return [
        path
        for model in _model_folders(Path(folder), planned)
        for path in index_files(model, curves, points.get(model.name))
    ]


def _read_frontiers(
    folder: Path, curves: bool, points: Iterable[str] | None
) -> dict[str, Frontier]:
    files = frontier_files(folder, curves, points)
    return {path.parent.name: read_frontier(path) for path in files}


def _has_model_results(path: Path) -> bool:
    names = ("graph.arrow", "*/frontier.arrow", "*/*/plan.json")
    whole = path.is_dir() and any(True for name in names for _ in path.glob(name))
    return whole or any(map(latest_error, [path, *path.glob("*")]))


def _read_plan_result(folder: Path, whole: bool, described: ProfileDevice | None) -> PlanResult:
    return PlanResult(
        plan=read_plan(folder / "plan.json"),
        folder=f"{folder.parent.name}/{folder.name}",
        steps=(_read_if_exists(folder / "schedule.arrow", read_schedule) or None)
        if whole
        else None,
        sequence=(_read_if_exists(folder / "sequence.arrow", read_sequence) or []) if whole else [],
        measurement=_read_if_exists(folder / "measurement.arrow", read_measurement),
        line=_read_if_exists(folder / "memory_timeline.arrow", read_memory_timeline)
        if whole
        else None,
        error=latest_error(folder)
        or _stale_plan_error(folder)
        or read_error(model_error_log(folder)),
        described=described,
        link=_read_if_exists(folder / "schedule.arrow", schedule_link) if whole else None,
        updates=_read_if_exists(folder / "schedule.arrow", schedule_optimizer_plan)
        if whole
        else None,
        sample=_read_sample(folder) if whole else None,
    )


def _read_sample(folder: Path) -> SampleResults | None:
    """The further sample of a whole step that the plan in a folder is of, None where it is of the
    first, or has none."""
    schedule, graph = folder / "schedule.arrow", folder.parent.parent / "graph.arrow"
    found = find_sample_graph(schedule, graph) if schedule.exists() else graph
    if found == graph:
        return None
    costs = _read_if_exists(found.with_name("costs.arrow"), read_costs)
    return SampleResults(read_graph(found), costs)


def _is_fused(folder: Path) -> bool:
    """Whether the kernels of a model are fused ones."""
    return bool(_read_if_exists(folder / "graph.arrow", has_fused_kernels))


def _read_eager_results(
    folder: Path, whole: bool, curves: bool, points: Iterable[str] | None
) -> EagerResults:
    return EagerResults(
        graph=_read_if_exists(folder / "graph.arrow", read_graph) if whole else None,
        costs=_read_if_exists(folder / "costs.arrow", read_costs) if whole else None,
        frontiers=_read_frontiers(folder, curves, points),
    )


def _set_fused_pace(folder: Path, plans: list[PlanResult]) -> list[PlanResult]:
    """The plans of a model, those of fused kernels at the pace of these."""
    if not _is_fused(folder):
        return plans
    alone = next((plan.measurement for plan in plans if plan.plan.strategy == KEEP_ALL), None)
    pace = 1.0 if alone is None else alone.time_ratio or 1.0
    return [
        plan if plan.plan.kernels == "eager" else replace(plan, fused=True, pace=pace)
        for plan in plans
    ]


def _read_described_device(folder: Path) -> ProfileDevice | None:
    """The device that the plans of a model are for, where it is a described one."""
    device = _read_if_exists(folder / "costs.arrow", read_profile_device)
    return device if device is not None and device.described else None


def _stale_plan_error(folder: Path) -> str:
    """Why the plan in a folder could not be made anew, "" where it is as new as its model."""
    error = upstream_error(folder)
    return f"{error} (this plan is from an earlier run)" if error else ""


def _read_if_exists(path: Path, reader: Callable[[Path], T]) -> T | None:
    return reader(path) if path.exists() else None


def _failures(folder: Path, points: Iterable[str] | None) -> dict[str, str]:
    """Sentences of strategies and points that have come to no plan, by their folder. If points are
    named there are no others, and each without a plan has one."""
    folders = sorted(path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_dir())
    errors = {path: latest_error(path) for path in folders if not (path / "plan.json").exists()}
    found = {str(path.relative_to(folder)): error for path, error in errors.items() if error}
    if points is None:
        return found
    known = {EAGER_FOLDER, *points, *(point.partition("/")[0] for point in points)}
    found = {name: error for name, error in found.items() if name in known}
    missing = [point for point in points if not (folder / point / "plan.json").exists()]
    if not missing:
        return found
    told = {EAGER_FOLDER, *(point.partition("/")[0] for point in missing)}
    told |= {name for name in found if name.startswith(SAMPLE_FOLDER)}
    found = {name: error for name, error in found.items() if name not in told}
    reasons = {
        point: latest_error(folder / point) or upstream_error(folder / point) for point in missing
    }
    return found | {point: reason or NOT_PLANNED_YET for point, reason in reasons.items()}


def _digests(folder: Path, points: set[str] | None) -> dict[str, str]:
    """The digests that the artifacts of a model carry, by their path below its folder; of plans
    those of some points."""
    paths = [
        path for depth in ("*", "*/*", "*/*/*") for path in sorted(folder.glob(f"{depth}.arrow"))
    ]
    found = {path.relative_to(folder): path for path in paths}
    return {str(name): _digest(path) for name, path in found.items() if _is_of_points(name, points)}


def _is_of_points(artifact: Path, points: set[str] | None) -> bool:
    """Whether an artifact is that of a model, or of a strategy or a plan among some points."""
    folders = [*artifact.parts[:-1]]
    if folders[:1] == [EAGER_FOLDER]:
        folders.pop(0)
    if points is None or not folders or folders[0] not in {*STRATEGIES, OPTIMIZER_OFFLOAD}:
        return True
    return any(point.split("/")[: len(folders)] == folders for point in points)


def _digest(path: Path) -> str:
    try:
        with pa.memory_map(str(path)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(f"{path}: is not a complete Arrow file") from error
    return metadata.get(b"digest", b"").decode(errors="replace")
