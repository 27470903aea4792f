"""A pipeline of a run as a line of the index and of the summary."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas.error_logs import MODEL_STAGES, latest_error_log, read_error
from tightfit.schemas.pipeline import PIPELINE_FILE, PipelineSchedule, read_pipeline
from tightfit.schemas.pipeline_measurement import (
    FAILED_STATUS,
    PipelineMeasurement,
    read_pipeline_measurement,
)
from tightfit.schemas.pipeline_pattern import (
    PATTERN_FILE,
    PipelinePattern,
    read_pipeline_pattern,
)
from tightfit.schemas.pipeline_plan import PipelinePlan, read_pipeline_plan
from tightfit.schemas.plan_folders import PLAN_PATH, PlanFolder
from tightfit.stages.report.load import (
    MODEL_PAGE_FILE,
    NOT_PLANNED_YET,
)
from tightfit.stages.report.outcomes import PlanOutcome
from tightfit.stages.report.plan_rows import PlanRow
from tightfit.stages.simulate.pipeline_pattern import step_seconds
from tightfit.util.command_line import format_duration

COMPUTE_KINDS = ("forward", "backward")
"""The operations of a pattern that compute."""


def read_pipeline_row(results: Path, folder: PlanFolder) -> PlanRow:
    """The row of a pipeline; raises ArtifactError for a damaged file."""
    place = folder.path(results)
    path, log = place.joinpath(*PLAN_PATH), _pipeline_error_log(place, MODEL_STAGES)
    page = place / MODEL_PAGE_FILE if (place / MODEL_PAGE_FILE).exists() else None
    if not path.exists():
        said = read_error(log) or NOT_PLANNED_YET
        word = "failed" if log else "not planned"
        outcome = PlanOutcome("bad", word, said, None, None, False, False)
        return PlanRow(folder, folder.target, page, outcome, log=log)
    plan, ranks = read_pipeline_plan(path), place / "ranks" / PIPELINE_FILE
    if plan.stage_recompute != "rockmate":
        log = _pipeline_error_log(place, set(MODEL_STAGES) - {"solve"})
    measured, pattern = place / "measurement.json", path.parent / PATTERN_FILE
    files = _PipelineFiles(
        plan,
        read_pipeline(ranks) if ranks.exists() else None,
        read_pipeline_measurement(measured) if measured.exists() else None,
        read_pipeline_pattern(pattern) if pattern.exists() else None,
    )
    return PlanRow(
        folder,
        plan.machine,
        page,
        files.outcome(read_error(log)),
        files.predicted_peak,
        plan.gap if files.feasible else None,
        files.note(),
        log,
        plan.status if files.measured is None else files.measured.status,
    )


def _pipeline_error_log(place: Path, stages: Container[str]) -> Path | None:
    """The log with the error of a stage of a pipeline, or of those of its model that it is made
    from."""
    own = latest_error_log(place) or latest_error_log(place.parent)
    return own or latest_error_log(place.parent.parent, stages)


@dataclass(frozen=True)
class PipelineStepTimes:
    """The seconds of a `step` of a pipeline, and of the same in a `single` process."""

    step: float
    single: float

    @property
    def ratio(self) -> float | None:
        """The time of the pipeline relative to that of one process."""
        return self.step / self.single if self.single else None

    def describe(self) -> str:
        """Both in words."""
        step, single = format_duration(self.step), format_duration(self.single)
        return f"a step takes {step} and that of one process {single}"


@dataclass(frozen=True)
class _PipelineFiles:
    """The plan of a pipeline, its ranks, what was measured of it, and its pattern; None where that
    is not there."""

    plan: PipelinePlan
    ranks: PipelineSchedule | None
    measured: PipelineMeasurement | None
    pattern: PipelinePattern | None

    @property
    def feasible(self) -> bool:
        return self.plan.status != "infeasible"

    @property
    def predicted_peak(self) -> int | None:
        """The most bytes of the step of a rank."""
        return max(self.ranks.peaks, default=None) if self.ranks else None

    @property
    def measured_times(self) -> PipelineStepTimes | None:
        """The times as measured, that of the slowest rank, None if it did not run."""
        if self.measured is None or not self.measured.ranks:
            return None
        step = max(rank.seconds for rank in self.measured.ranks)
        return PipelineStepTimes(step, self.measured.single_process_seconds)

    @property
    def planned_times(self) -> PipelineStepTimes | None:
        """The times as planned. One process computes what all stages do, each microbatch once, and
        recomputes nothing."""
        if self.pattern is None or self.ranks is None or not self.pattern.operations:
            return None
        computed = (row for row in self.pattern.operations if row.operation in COMPUTE_KINDS)
        batch = sum(row.duration for row in computed) / self.pattern.batches
        batch -= sum(stage.recompute_seconds for stage in self.plan.stages)
        count = self.ranks.microbatches
        return PipelineStepTimes(step_seconds(self.pattern, count), count * batch)

    def outcome(self, error: str) -> PlanOutcome:
        """What became of it; `error` is that of a stage."""
        peak = self.predicted_peak
        if error:
            return PlanOutcome("bad", "failed", f"Failed: {error}", peak, None, False, False)
        if not self.feasible:
            said = self.plan.message
            return PlanOutcome("bad", "infeasible", said, None, None, False, False)
        planned, times = self.planned_times, self.measured_times
        if self.measured is None or times is None:
            said = f"Should fit: {self.plan.message}"
            ratio = None if planned is None else planned.ratio
            return PlanOutcome("warning", "should fit", said, peak, ratio, False, True)
        peak = max(rank.measured_peak for rank in self.measured.ranks)
        shared = self.measured.shares_processors
        told = planned if shared else times
        ratio = None if told is None else told.ratio
        if self.measured.status == FAILED_STATUS:
            said = f"Failed: {self.measured.message}"
            return PlanOutcome("bad", "failed", said, peak, ratio, True, False, as_planned=shared)
        said = f"Fits: {self.measured.message}."
        return PlanOutcome("good", "fits", said, peak, ratio, True, True, as_planned=shared)

    def note(self) -> str:
        """How good a plan is, and on how many devices."""
        plan = self.plan
        if not self.feasible or plan.period is None:
            return ""
        used = len({stage.device for stage in plan.stages})
        said = f"{used} ranks, a batch every {format_duration(plan.period)} as planned"
        if plan.status == "optimal":
            said += ", which is optimal"
        if self.planned_times is not None:
            said += f"; as planned {self.planned_times.describe()}"
        if self.measured is None or self.measured_times is None:
            return f"{said}; not run"
        said += f"; {self.measured_times.describe()}"
        if self.measured.shares_processors:
            shared = f"{len(self.measured.ranks)} ranks shared {self.measured.processors}"
            said += f", which does not compare plans, since {shared} processors"
        return said
