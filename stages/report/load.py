"""Reads what the other stages left in a results directory. What is not there is None: a model that
failed, a budget that no plan meets and a plan not yet measured all still have a page."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from tightfit.schemas.blocks import Blocks, read_blocks
from tightfit.schemas.config import BESIDE
from tightfit.schemas.costs import Costs, Device, read_costs, read_device
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.frontier import Frontier, read_frontier
from tightfit.schemas.graph import Graph, is_fused, read_graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.measurement import LinePoint, Measurement, read_line, read_measurement
from tightfit.schemas.options import Option, read_options
from tightfit.schemas.plan import Plan, read_plan
from tightfit.schemas.schedule import Step, read_schedule, schedule_link, schedule_updates
from tightfit.schemas.sequence import Operation, read_sequence
from tightfit.schemas.strategies import STRATEGIES, UNPLANNED, baselines
from tightfit.schemas.updates import Updates

T = TypeVar("T")

ERRORS = "logs/*.txt"
"""Beside what a stage makes: its error, one file a stage, empty or absent where it went well."""
PAGE = "report.html"
"""The page of a model, in the model's folder."""
BEFORE_PLANS = ("trace", "fuse", "profile", "partition", "solve")
"""The stages of a model that its plans are made from."""
OF_STRATEGIES = ("hierarchy", "solve_linked")
"""Those that some strategies alone wait for."""
UNTOLD = (
    "the run ended before this was planned, and no step says why: another one goes on from there"
)
"""What is told of a plan that is not there, where no log of what it waits for has an error."""


@dataclass(frozen=True)
class PlanResult:
    """One point of a run: a plan with what was made of it. `folder` is strategy/budget; `error` is
    the sentence of the stage that failed for it, or of one before it that failed since; `described`
    is the device that it was planned for without being run there. `link` and `updates` are those of
    its schedule. Where the kernels of a plan are `fused`, `pace` is what their step takes unplanned
    of the original's time, as measured, 1 where it is not."""

    plan: Plan
    folder: str
    steps: list[Step] | None
    sequence: list[Operation]
    measurement: Measurement | None
    line: list[LinePoint] | None
    error: str
    described: Device | None = None
    link: HostLink | None = None
    updates: Updates | None = None
    fused: bool = False
    pace: float = 1.0

    @property
    def relative(self) -> float | None:
        """The predicted time beside the original's, None where there is none."""
        if self.plan.time is None or self.plan.keep_all.time <= 0:
            return None
        return self.pace * self.plan.time / self.plan.keep_all.time


@dataclass(frozen=True)
class ModelResults:
    """All that a run found out about one model. `error` is the sentence of a stage that failed for
    the whole model, `failures` those for a strategy or a point that has no plan, by folder;
    `digests` are those of the artifacts by file. Where kernels are fused, `beside` is what was
    planned with eager's. It is `shown` where it has a page."""

    name: str
    error: str
    failures: dict[str, str]
    graph: Graph | None
    costs: Costs | None
    blocks: Blocks | None
    options: dict[str, list[Option]]
    frontiers: dict[str, Frontier]
    plans: list[PlanResult]
    digests: dict[str, str]
    beside: Beside | None = None
    shown: bool = False

    @property
    def pace(self) -> float:
        """The pace of its own kernels."""
        return next((result.pace for result in self.plans if result.fused), 1.0)

    def graph_of(self, result: PlanResult) -> Graph | None:
        """The graph that a plan is of, None where it is not there."""
        return self.beside.graph if self.is_beside(result) and self.beside else self.graph

    def costs_of(self, result: PlanResult) -> Costs | None:
        """The costs of that graph, None where they are not there."""
        return self.beside.costs if self.is_beside(result) and self.beside else self.costs

    def is_beside(self, result: PlanResult) -> bool:
        """Whether a plan is one of eager's kernels where fused ones were asked for."""
        return self.beside is not None and result.plan.kernels == "eager"


@dataclass(frozen=True)
class Beside:
    """What was planned with eager's kernels beside fused ones: the graph, its costs, and the
    frontiers by strategy."""

    graph: Graph | None
    costs: Costs | None
    frontiers: dict[str, Frontier]


def load_model(
    folder: Path | str, whole: bool = True, planned: Iterable[str] = (), curves: bool = True
) -> ModelResults:
    """The results of one model; raises ArtifactError for a damaged file and for a directory that
    holds nothing of a run. Without `whole`, only what an index needs: frontiers and plans without
    schedules. Of the points `planned`, by folder, each that has no plan is a failure. Without
    `curves` frontiers are those of baselines alone."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: there is no such directory of results")
    plans = sorted(folder.glob("*/*/plan.json"))
    error = sentence_in(log_of(folder, without=OF_STRATEGIES))
    described = _described(folder)
    if not _is_model(folder):
        raise ArtifactError(f"{folder}: holds no results of a model")
    return ModelResults(
        name=folder.name,
        error=error,
        failures=_failures(folder, planned),
        graph=_maybe(folder / "graph.arrow", read_graph) if whole else None,
        costs=_maybe(folder / "costs.arrow", read_costs) if whole else None,
        blocks=_maybe(folder / "blocks.arrow", read_blocks) if whole else None,
        options=(_maybe(folder / "options.arrow", read_options) or {}) if whole else {},
        frontiers=_frontiers(folder, curves),
        plans=_paced(folder, [_plan(path.parent, whole, described) for path in plans]),
        digests=_digests(folder) if whole else {},
        beside=_beside(folder / BESIDE, whole, curves) if _is_fused(folder) else None,
        shown=(folder / PAGE).exists(),
    )


def load_run(
    folder: Path | str,
    planned: Mapping[str, Iterable[str]] | None = None,
    curves: bool = True,
) -> list[ModelResults]:
    """The results of all models of a run, by name, without their large artifacts. Of one that
    failed `planned` are the points that it was for, by model: a model of which a file is damaged
    has that as its error then, which is raised else. `curves` are as in `load_model`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: there is no such directory of results")
    found = []
    for path in filter(_is_model, sorted(folder.iterdir())):
        points = (planned or {}).get(path.name, ())
        try:
            found.append(load_model(path, whole=False, planned=points, curves=curves))
        except ArtifactError as error:
            if planned is None:
                raise
            none = ModelResults(path.name, str(error), {}, None, None, None, {}, {}, [], {})
            found.append(replace(none, shown=(path / PAGE).exists()))
    return found


def files_of_model(folder: Path | str, curves: bool = True) -> list[Path]:
    """The artifacts and plans that `load_model` reads; logs of errors are none."""
    folder = Path(folder)
    names = [
        *("graph.arrow", "blocks.arrow", "options.arrow", f"{BESIDE}/graph.arrow"),
        *(f"*/*/{name}" for name in ("schedule.arrow", "sequence.arrow", "line.arrow")),
    ]
    return sorted(
        [*_index_files(folder, curves), *(path for name in names for path in folder.glob(name))]
    )


def files_of_run(folder: Path | str, curves: bool = True) -> list[Path]:
    """The artifacts and plans that `load_run` reads."""
    return [
        path for model in sorted(Path(folder).iterdir()) for path in _index_files(model, curves)
    ]


def _index_files(folder: Path, curves: bool) -> list[Path]:
    names = ("costs.arrow", f"{BESIDE}/costs.arrow", "*/*/plan.json", "*/*/measurement.arrow")
    known = [path for name in names for path in folder.glob(name)]
    frontiers = [path for place in (folder, folder / BESIDE) for path in _curves(place, curves)]
    return sorted([*known, *frontiers])


def _curves(folder: Path, curves: bool) -> list[Path]:
    """The frontiers that are shown of those in a folder."""
    found = sorted(folder.glob("*/frontier.arrow"))
    return [path for path in found if curves or path.parent.name in baselines()]


def _frontiers(folder: Path, curves: bool) -> dict[str, Frontier]:
    return {path.parent.name: read_frontier(path) for path in _curves(folder, curves)}


def _is_model(path: Path) -> bool:
    names = ("graph.arrow", "*/frontier.arrow", "*/*/plan.json")
    whole = path.is_dir() and any(True for name in names for _ in path.glob(name))
    return whole or any(map(error_of, [path, *path.glob("*")]))


def _plan(folder: Path, whole: bool, described: Device | None) -> PlanResult:
    return PlanResult(
        plan=read_plan(folder / "plan.json"),
        folder=f"{folder.parent.name}/{folder.name}",
        steps=(_maybe(folder / "schedule.arrow", read_schedule) or None) if whole else None,
        sequence=(_maybe(folder / "sequence.arrow", read_sequence) or []) if whole else [],
        measurement=_maybe(folder / "measurement.arrow", read_measurement),
        line=_maybe(folder / "line.arrow", read_line) if whole else None,
        error=error_of(folder) or _outdated(folder) or sentence_in(log_of_model(folder)),
        described=described,
        link=_maybe(folder / "schedule.arrow", schedule_link) if whole else None,
        updates=_maybe(folder / "schedule.arrow", schedule_updates) if whole else None,
    )


def _is_fused(folder: Path) -> bool:
    """Whether the kernels of a model are fused ones."""
    return bool(_maybe(folder / "graph.arrow", is_fused))


def _beside(folder: Path, whole: bool, curves: bool) -> Beside:
    return Beside(
        graph=_maybe(folder / "graph.arrow", read_graph) if whole else None,
        costs=_maybe(folder / "costs.arrow", read_costs) if whole else None,
        frontiers=_frontiers(folder, curves),
    )


def _paced(folder: Path, plans: list[PlanResult]) -> list[PlanResult]:
    """The plans of a model, those of fused kernels at the pace of these."""
    if not _is_fused(folder):
        return plans
    alone = next((plan.measurement for plan in plans if plan.plan.strategy == UNPLANNED), None)
    pace = 1.0 if alone is None else alone.time_ratio or 1.0
    return [
        plan if plan.plan.kernels == "eager" else replace(plan, fused=True, pace=pace)
        for plan in plans
    ]


def _described(folder: Path) -> Device | None:
    """The device that the plans of a model are for, where it is a described one."""
    device = _maybe(folder / "costs.arrow", read_device)
    return device if device is not None and device.described else None


def log_of_model(folder: Path) -> Path | None:
    """The log with the error of the model's own step, which the validation of the point in a folder
    waits for; None where that went well."""
    return log_of(folder.parent.parent, ("reference",))


def _outdated(folder: Path) -> str:
    """Why the plan in a folder could not be made anew, "" where it is as new as its model."""
    error = error_before(folder)
    return f"{error} (this plan is from an earlier run)" if error else ""


def error_before(folder: Path) -> str:
    """The error of a stage that the point in a folder waits for; see `log_before`."""
    return sentence_in(log_before(folder))


def log_before(folder: Path) -> Path | None:
    """The log with the error of a stage that the point in a folder waits for: its strategy's or
    its model's, also with eager's kernels where fused ones are compared with these, or that of the
    link; None where all went well."""
    model, strategy = folder.parent.parent, folder.parent.name
    about, beside = STRATEGIES.get(strategy), model / BESIDE
    plans = (_plans_of(strategy),)
    stages = [*BEFORE_PLANS]
    if about is not None:
        taken = zip(OF_STRATEGIES, (about.clusters, about.sends), strict=True)
        stages += [name for name, takes in taken if takes]
    return (
        log_of(folder.parent, plans)
        or log_of(model, stages)
        or log_of(beside / strategy, plans)
        or log_of(beside, stages)
        or (_link_log(folder.parent) if about is not None and about.links else None)
    )


def _plans_of(strategy: str) -> str:
    """The file, and the log, of the plans that those for a budget are chosen from."""
    about = STRATEGIES.get(strategy)
    return "given" if about is not None and not about.baseline else "frontier"


def _link_log(strategy: Path) -> Path | None:
    """The log of the link that a strategy takes, where measuring it failed since the strategy's
    plans were made, if they were."""
    log, made = (
        log_of(strategy.parent.parent, ("link",)),
        strategy / f"{_plans_of(strategy.name)}.arrow",
    )
    if log is None or not made.exists():
        return log
    return log if log.stat().st_mtime_ns > made.stat().st_mtime_ns else None


def _maybe(path: Path, reader: Callable[[Path], T]) -> T | None:
    return reader(path) if path.exists() else None


def error_of(folder: Path) -> str:
    """The latest error of a stage that worked in a folder, "" where all went well."""
    return sentence_in(log_of(folder))


def log_of(
    folder: Path, stages: Container[str] | None = None, without: Container[str] = ()
) -> Path | None:
    """The log with the latest error of a stage that worked in a folder, of those named only, and
    `without` others; None where all went well."""
    logs = [path for path in folder.glob(ERRORS) if stages is None or path.stem in stages]
    told = [path for path in logs if path.stem not in without and path.stat().st_size]
    return max(told, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def sentence_in(log: Path | None) -> str:
    """The error that a log has, "" of none."""
    return "" if log is None else log.read_text(encoding="utf-8", errors="replace").strip()


def _failures(folder: Path, planned: Iterable[str]) -> dict[str, str]:
    """Sentences of strategies and points that have come to no plan, by their folder. What was
    `planned` has one for each point, unless the whole model failed."""
    folders = sorted(path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_dir())
    errors = {path: error_of(path) for path in folders if not (path / "plan.json").exists()}
    found = {str(path.relative_to(folder)): error for path, error in errors.items() if error}
    missing = [point for point in planned if not (folder / point / "plan.json").exists()]
    if not missing or log_of(folder, BEFORE_PLANS) is not None:
        return found
    told = {BESIDE, *(point.partition("/")[0] for point in missing)}
    found = {name: error for name, error in found.items() if name not in told}
    reasons = {point: error_of(folder / point) or error_before(folder / point) for point in missing}
    return found | {point: reason or UNTOLD for point, reason in reasons.items()}


def _digests(folder: Path) -> dict[str, str]:
    """The digests that the artifacts of a model carry, by their path below its folder."""
    paths = [
        path for depth in ("*", "*/*", "*/*/*") for path in sorted(folder.glob(f"{depth}.arrow"))
    ]
    return {str(path.relative_to(folder)): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    try:
        with pa.memory_map(str(path)) as source:
            metadata = pa.ipc.open_file(source).schema.metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(f"{path}: is not a complete Arrow file") from error
    return metadata.get(b"digest", b"").decode(errors="replace")
