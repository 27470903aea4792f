"""The streams of a plan with an offload target as a picture: what each is busy with, over time, and
the bytes of that memory below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tightfit.schemas.actions import (
    Compute,
    ComputeLoss,
    Offload,
    OptimizerAction,
    Prefetch,
    TransferAction,
    Wait,
)
from tightfit.schemas.measurement import TimelinePoint
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.report.axes import AxisScale, AxisTick
from tightfit.stages.report.formatting import format_bytes, format_duration, trim_decimals
from tightfit.stages.report.memory_timeline import align_timeline, first_computation

PLOT_CELLS = 960
"""Widths that the step is cut into; a stream that is busy in one of them has a mark there."""

ACTIVITY_NAMES = {
    "computing": "computations",
    "updating": "updates of parameters",
    "moving": "tensors on their way",
    "passing": "states on their way",
    "waiting": "waiting for what is on its way",
}

MEASURED_LINES = ("offload", "prefetch", "wait")
"""The lines of a measured step that say what its streams were busy with."""
MEASURED_SUFFIX = ", measured"
"""What the name of a measured stream ends with."""

StateTransfer = tuple[str, float, float]
"""A stream, and from when to when states are on their way in it."""


@dataclass(frozen=True)
class StreamActivity:
    """Spans of one kind in a stream, as path data in thousandths of the plot's width."""

    kind: str
    path: str


@dataclass(frozen=True)
class StreamRow:
    """A stream with its marks; `busy` is the part of the step in percent, without waiting."""

    name: str
    marks: list[StreamActivity]
    busy: float


@dataclass(frozen=True)
class StreamPlot:
    """The streams in the order of their first use, then those of a step that was measured, and the
    line of the offload target: `other` is its name, `peak` its most bytes, `line` path data, and
    `ran` that of the measured step, whose most bytes are `ran_peak`, on the clock of the
    prediction. Places are percent."""

    streams: list[StreamRow]
    kinds: dict[str, str]
    other: str
    peak: int
    line: str
    x_ticks: list[AxisTick]
    y_ticks: list[AxisTick]
    ran: str = ""
    ran_peak: int = 0


def plot_streams(
    steps: Sequence[ScheduleStep],
    passing: Sequence[StateTransfer] = (),
    stays: int = 0,
    ran: Sequence[TimelinePoint] = (),
    took: float = 0.0,
    other: str = "",
) -> StreamPlot | None:
    """The picture of a schedule as it was simulated; None where all of it is in one stream.
    `passing` are the transfers of states, which are no steps of their own; `stays` are the bytes
    that are in the offload target before the step and after it. `ran` are the lines of a measured
    step, which `took` so many seconds. `other` is the offload target where bytes stay and no step
    names it."""
    spans: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for stream, kind, start, end in (
        *_step_spans(steps),
        *((n, "passing", s, e) for n, s, e in passing),
    ):
        spans.setdefault(stream, {}).setdefault(kind, []).append((start, end))
    if len(spans) < 2:
        return None
    predicted = max(end for kinds in spans.values() for every in kinds.values() for _, end in every)
    spans |= measured_stream_spans(steps, ran, took)
    seconds = max(end for kinds in spans.values() for every in kinds.values() for _, end in every)
    seconds = max(seconds, 1e-12)
    first = first_computation(steps)
    own = first.memory if first else ""
    levels = [(0.0, stays), *_offload_levels(steps, own)]
    there = [(point.seconds, point.live) for point in ran if point.run == "offloaded"]
    peak, ran_peak = (max((level for _, level in line), default=0) for line in (levels, there))
    x, y = AxisScale(0.0, seconds), AxisScale(0.0, 1.06 * max(peak, ran_peak, 1), flipped=True)
    found = align_timeline(there, levels, predicted)
    places = [(x.at(when), y.at(level)) for when, level in levels]
    used = {kind for kinds in spans.values() for kind in kinds}
    return StreamPlot(
        streams=[_build_stream_row(name, kinds, seconds) for name, kinds in spans.items()],
        kinds={kind: name for kind, name in ACTIVITY_NAMES.items() if kind in used},
        other=next((step.memory for step in steps if step.memory != own), other),
        peak=peak,
        line=_staircase_path(places),
        x_ticks=x.ticks(8, lambda seconds_: trim_decimals(format_duration(seconds_))),
        y_ticks=y.ticks(3, lambda bytes_: trim_decimals(format_bytes(bytes_))),
        ran=_staircase_path([(x.at(when), y.at(level)) for when, level in found]),
        ran_peak=ran_peak,
    )


def measured_stream_spans(
    steps: Sequence[ScheduleStep], ran: Sequence[TimelinePoint], took: float
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """What the streams of a measured step were busy with, by stream and kind; none where it was not
    measured. Its computations went on wherever they did not wait."""
    found = {
        run: list(_busy_spans([point for point in ran if point.run == run]))
        for run in MEASURED_LINES
    }
    if not any(found.values()):
        return {}
    names = {"offload": Offload, "prefetch": Prefetch}
    streams: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run, kind in names.items():
        stream = next((step.stream for step in steps if isinstance(step.action, kind)), "")
        if stream and found[run]:
            streams[f"{stream}{MEASURED_SUFFIX}"] = {"moving": found[run]}
    waits = found["wait"]
    end = max(took, *(stop for spans in found.values() for _, stop in spans))
    edges = [0.0, *(edge for span in waits for edge in span), end]
    computing = [span for span in zip(edges[::2], edges[1::2], strict=True) if span[0] < span[1]]
    own = next(step.stream for step in steps if isinstance(step.action, Compute | ComputeLoss))
    return {f"{own}{MEASURED_SUFFIX}": {"computing": computing, "waiting": waits}} | streams


def _busy_spans(line: Sequence[TimelinePoint]) -> Iterator[tuple[float, float]]:
    """The spans in which there is something in a line."""
    for point, after in pairwise(line):
        if point.live and after.seconds > point.seconds:
            yield point.seconds, after.seconds


def _step_spans(steps: Sequence[ScheduleStep]) -> Iterator[tuple[str, str, float, float]]:
    """What takes time: stream, kind, begin and end."""
    for step in steps:
        if step.end <= step.start:
            continue
        kind = "computing"
        if isinstance(step.action, TransferAction):
            kind = "moving"
        elif isinstance(step.action, OptimizerAction):
            kind = "updating"
        elif isinstance(step.action, Wait):
            kind = "waiting"
        yield step.stream, kind, step.start, step.end


def _build_stream_row(
    name: str, kinds: dict[str, list[tuple[float, float]]], seconds: float
) -> StreamRow:
    marks = [
        StreamActivity(kind, _spans_path(kinds[kind], seconds))
        for kind in ACTIVITY_NAMES
        if kind in kinds
    ]
    busy = sum(end - start for kind in kinds if kind != "waiting" for start, end in kinds[kind])
    return StreamRow(name, marks, round(100 * busy / seconds, 1))


def _spans_path(spans: Sequence[tuple[float, float]], seconds: float) -> str:
    """Boxes over the cells in which there is anything; short spans fill the part they take."""
    parts = []
    begin = end = -1.0
    for start, stop in sorted(spans):
        if start - end > seconds / PLOT_CELLS or begin < 0:
            parts.append((begin, end))
            begin, end = start, stop
        end = max(end, stop)
    boxes = [*parts[1:], (begin, end)]
    across = 1000 / seconds
    return "".join(
        f"M{across * start:.1f} 0H{max(across * stop, across * start + 0.4):.1f}V1000"
        f"H{across * start:.1f}Z"
        for start, stop in boxes
    )


def _offload_levels(steps: Sequence[ScheduleStep], own: str) -> Iterator[tuple[float, int]]:
    """The bytes of the offload target from each moment on at which they change, by the order of
    issue."""
    now, known = 0.0, -1
    for step in steps:
        if step.memory == own:
            now = step.end
        elif step.live != known:
            yield now, step.live
            known = step.live


def _staircase_path(places: Sequence[tuple[float, float]]) -> str:
    if not places:
        return ""
    rest = "".join(f"H{10 * x:.1f}V{10 * y:.1f}" for x, y in places[1:])
    return f"M{10 * places[0][0]:.1f} {10 * places[0][1]:.1f}{rest}H1000"
