"""What a person sees of a pipeline: devices over time, the memory of each, and a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightfit.schemas.pipeline import BACKWARD, FORWARD, LOSS, PipelineSchedule
from tightfit.schemas.pipeline_measurement import FAILED_STATUS, MeasuredRank, PipelineMeasurement
from tightfit.schemas.pipeline_pattern import PipelinePattern
from tightfit.schemas.pipeline_plan import PipelinePlan
from tightfit.stages.report.formatting import format_duration
from tightfit.stages.simulate.pipeline_pattern import unroll_pattern

PLOT_WIDTH = 1000.0
HUE_STEP = 47
"""Degrees between the hues of two batches that follow each other."""


@dataclass(frozen=True)
class OperationSpan:
    """One operation of a lane, in seconds; `light` where it goes forward, `idle` where it only
    waits or exchanges."""

    start: float
    end: float
    batch: int
    light: bool
    name: str
    idle: bool = False


@dataclass(frozen=True)
class GanttBar:
    """A span as it is drawn: thousandths of the width, the hue of its batch, what it says, and
    the class of its style, "" for that of the hue."""

    x: float
    width: float
    hue: int
    light: bool
    tip: str
    kind: str


@dataclass(frozen=True)
class GanttRow:
    """A row of the picture."""

    name: str
    bars: list[GanttBar]
    link: bool


@dataclass(frozen=True)
class GanttChart:
    """Devices and links over time: `fills` and `drains` are the shares of the width up to which,
    and from which on, no stage goes backward, or forward."""

    title: str
    lanes: list[GanttRow]
    seconds: float
    fills: float
    drains: float


@dataclass(frozen=True)
class RankMemoryPlot:
    """The bytes of a rank's step, action by action: a path in thousandths, the most, and what the
    device has left beside parameters and buffers (`limit`, drawn at `limit_y`)."""

    name: str
    path: str
    peak: int
    limit: int
    limit_y: float


@dataclass(frozen=True)
class RankRow:
    """A line of the table of ranks."""

    rank: int
    device: str
    stages: str
    busy: float
    fixed: int
    predicted: int
    measured: int | None
    memory: int
    seconds: float | None


@dataclass(frozen=True)
class PipelinePage:
    """Everything of the page."""

    model: str
    strategy: str
    status: str
    message: str
    microbatches: int
    pictures: list[GanttChart]
    memories: list[RankMemoryPlot]
    rows: list[RankRow]


def build_pipeline_page(
    pipeline: PipelineSchedule,
    plan: PipelinePlan,
    pattern: PipelinePattern | None,
    measured: PipelineMeasurement | None,
) -> PipelinePage:
    """The page of a pipeline, with what was measured where it was. A plan that is infeasible has no
    pattern, and nothing is drawn of it."""
    pictures = []
    if pattern is not None:
        spans = planned_spans(pattern, pipeline.microbatches)
        pictures.append(build_gantt_chart("As planned", spans))
    if measured is not None and measured.ranks:
        pictures.append(build_gantt_chart("As it ran", measured_spans(pipeline, measured)))
    failed = measured is not None and measured.status == FAILED_STATUS
    said = plan.message
    if measured is not None and measured.ranks:
        said += f" {measured.message}."
    elif measured is None:
        said += " It was not run."
    return PipelinePage(
        model=pipeline.model,
        strategy=plan.strategy,
        status=FAILED_STATUS if failed else plan.status,
        message=said,
        microbatches=pipeline.microbatches,
        pictures=pictures,
        memories=[_plot_rank_memory(pipeline, rank) for rank in range(pipeline.ranks)],
        rows=list(_rank_rows(pipeline, plan, measured)),
    )


def planned_spans(pattern: PipelinePattern, microbatches: int) -> dict[str, list[OperationSpan]]:
    """What devices, then links, do by the pattern, by their names."""
    found: dict[str, list[OperationSpan]] = {}
    for start, batch, operation in unroll_pattern(pattern, microbatches):
        span = OperationSpan(
            start,
            start + operation.duration,
            batch,
            operation.operation in ("forward", "send"),
            f"{operation}, microbatch {batch}",
        )
        found.setdefault(operation.device, []).append(span)
    return {name: found[name] for name in sorted(found, key=lambda name: ("/" in name, name))}


def measured_spans(
    pipeline: PipelineSchedule, measured: PipelineMeasurement
) -> dict[str, list[OperationSpan]]:
    """What the ranks did, those actions that take time, by the names of their devices."""
    return {row.device: list(_rank_spans(pipeline, row)) for row in measured.ranks}


def _rank_spans(pipeline: PipelineSchedule, row: MeasuredRank) -> Iterator[OperationSpan]:
    for action in row.timeline:
        if action.kind in ("send", "wait") and action.end - action.start < 1e-6:
            continue
        if action.kind in ("draw", "share"):
            name = "random numbers ahead" if action.kind == "draw" else "a shared gradient"
            yield OperationSpan(action.start, action.end, 0, True, name, True)
            continue
        what = f"stage {action.subject}"
        if action.kind in ("send", "receive", "wait"):
            maker = pipeline.parcels[action.subject].maker
            what = f"what the {maker[1]} of stage {maker[0]} made"
        idle = action.kind not in (FORWARD, LOSS, BACKWARD)
        name = f"{action.kind} of {what}, microbatch {action.microbatch}"
        light = action.kind not in (LOSS, BACKWARD)
        yield OperationSpan(action.start, action.end, action.microbatch, light, name, idle)


def build_gantt_chart(title: str, lanes: dict[str, list[OperationSpan]]) -> GanttChart:
    """The picture of lanes by name."""
    spans = [span for name, found in lanes.items() if "/" not in name for span in found]
    seconds = max((span.end for found in lanes.values() for span in found), default=0.0) or 1.0
    back = [span.start for span in spans if not span.light]
    there = [span.end for span in spans if span.light and "forward" in span.name]
    return GanttChart(
        title,
        [
            GanttRow(name, [_build_bar(span, seconds) for span in found], "/" in name)
            for name, found in lanes.items()
        ],
        seconds,
        min(back, default=seconds) / seconds,
        max(there, default=0.0) / seconds,
    )


def _build_bar(span: OperationSpan, seconds: float) -> GanttBar:
    took = format_duration(span.end - span.start)
    said = f"{span.name}: {took} from {format_duration(span.start)} on"
    return GanttBar(
        PLOT_WIDTH * span.start / seconds,
        max(PLOT_WIDTH * (span.end - span.start) / seconds, 0.5),
        span.batch * HUE_STEP % 360,
        span.light,
        said,
        "gantt-idle" if span.idle else "",
    )


def _plot_rank_memory(pipeline: PipelineSchedule, rank: int) -> RankMemoryPlot:
    actions = pipeline.actions[rank]
    limit = max(pipeline.memory[rank] - pipeline.fixed[rank], 0)
    top = 1.1 * max(pipeline.peaks[rank], 1)
    step = PLOT_WIDTH / max(len(actions), 1)
    points = ["M0 1000"]
    for number, action in enumerate(actions):
        x = number * step
        points.append(
            f"L{x:.1f} {_plot_height(action.peak, top)}L{x + step:.1f} "
            f"{_plot_height(action.peak, top)}"
        )
        points.append(f"L{x + step:.1f} {_plot_height(action.live, top)}")
    points.append("L1000 1000Z")
    return RankMemoryPlot(
        pipeline.devices[rank],
        "".join(points),
        pipeline.peaks[rank],
        limit,
        1000 * (1 - limit / top),
    )


def _plot_height(amount: int, top: float) -> str:
    return f"{1000 * (1 - amount / top):.1f}"


def _rank_rows(
    pipeline: PipelineSchedule, plan: PipelinePlan, measured: PipelineMeasurement | None
) -> Iterator[RankRow]:
    busy = {device.device: device.busy for device in plan.devices}
    for rank, name in enumerate(pipeline.devices):
        own = [str(stage.stage) for stage in pipeline.stages if stage.rank == rank]
        row = None if measured is None else measured.ranks[rank]
        yield RankRow(
            rank=rank,
            device=name,
            stages=", ".join(own),
            busy=busy.get(name, 0.0),
            fixed=pipeline.fixed[rank],
            predicted=pipeline.peaks[rank],
            measured=None if row is None else row.measured_peak,
            memory=pipeline.memory[rank],
            seconds=None if row is None else row.seconds,
        )


def build_pipeline_trace(
    pipeline: PipelineSchedule,
    pattern: PipelinePattern | None,
    measured: PipelineMeasurement | None,
) -> dict[str, Any]:
    """The trace document for Perfetto: a process for each rank, or device and link by the pattern,
    with its bytes as a counter where the rank ran; none where there is no pattern."""
    lanes = planned_spans(pattern, pipeline.microbatches) if pattern is not None else {}
    events: list[dict[str, Any]] = []
    if measured is not None:
        lanes = measured_spans(pipeline, measured)
        for process, row in enumerate(measured.ranks, start=1):
            events += _counter_events(pipeline, row, process)
    for process, (name, spans) in enumerate(lanes.items(), start=1):
        title = {"name": f"{pipeline.model}: {name}"}
        events.append(
            {"name": "process_name", "ph": "M", "ts": 0, "pid": process, "tid": 1, "args": title}
        )
        events += [_span_event(span, process) for span in spans]
    events.sort(key=lambda event: (event["ph"] != "M", event["ts"]))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"model": pipeline.model, "microbatches": str(pipeline.microbatches)},
    }


def _span_event(span: OperationSpan, process: int) -> dict[str, Any]:
    return {
        "name": span.name,
        "cat": FORWARD if span.light else BACKWARD,
        "ph": "X",
        "ts": round(span.start * 1e6, 3),
        "dur": round((span.end - span.start) * 1e6, 3),
        "pid": process,
        "tid": 1,
        "args": {"microbatch": span.batch},
    }


def _counter_events(
    pipeline: PipelineSchedule, row: MeasuredRank, process: int
) -> Iterator[dict[str, Any]]:
    """The predicted bytes of a rank at the moments of its actions."""
    for action, ran in zip(pipeline.actions[row.rank], row.timeline, strict=True):
        for moment, amount in ((ran.start, action.peak), (ran.end, action.live)):
            yield {
                "name": "bytes of the step", "ph": "C", "ts": round(moment * 1e6, 3),
                "pid": process, "tid": 1, "args": {"bytes": amount},
            }  # fmt: skip
