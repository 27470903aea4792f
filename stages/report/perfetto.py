"""A schedule as a trace file for Perfetto and chrome://tracing, in the Trace Event Format.

Complete events ("X") for what runs, counters ("C") for memory, instants ("i") for what takes no
time, metadata ("M") for names. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tightfit.schemas.actions import (
    ACTION_NAMES,
    AccumulateOnHost,
    ComputeLoss,
    OptimizerAction,
    TransferAction,
    UpdateOnHost,
    Wait,
    action_to_row,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.measurement import TimelinePoint
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.report.formatting import op_label
from tightfit.stages.report.stream_plot import measured_stream_spans
from tightfit.stages.simulate.effects import schedule_effects

TraceEvent = dict[str, Any]

_PREDICTED_PROCESS, _MEASURED_PROCESS = 1, 2
_PHASES = 1
_FIRST_LANE = 2
_INSTANTS = {
    "pass_gradient": "gradient handed over",
    "save_random": "random state saved",
    "restore_random": "random state restored",
}


def build_trace(
    graph: Graph,
    steps: Sequence[ScheduleStep],
    passing: Sequence[tuple[str, float, float]] = (),
    ran: Sequence[TimelinePoint] = (),
) -> dict[str, Any]:
    """The trace document of a simulated schedule: JSON-ready, events by rising time.

    Streams are threads, in the order they are first used; above them lies one with the phases. Each
    memory is a counter of its live bytes, at its most while an op runs. An op that ran before is of
    the category "recomputation". `passing` are the transfers of states
    (`SimulationResult.passing`). The lines of a step that `ran` are a process of their own:
    counters of both memories, and its streams."""
    streams = list(
        dict.fromkeys((*(step.stream for step in steps), *(stream for stream, *_ in passing)))
    )
    threads = {stream: _FIRST_LANE + index for index, stream in enumerate(streams)}
    events = [
        *_phase_events(steps),
        *_step_events(graph, steps, threads),
        *_memory_events(steps),
    ]
    events += [
        _complete_event("states", "transfer", start, end, threads[stream], {})
        for stream, start, end in passing
    ]
    measured = list(_measured_events(steps, ran))
    events.sort(key=lambda event: event["ts"])
    return {
        "traceEvents": [*_name_events(graph, threads), *events, *measured],
        "displayTimeUnit": "ms",
        "otherData": {"model": graph.model, "device": graph.device, "torch": graph.torch},
    }


def _name_events(graph: Graph, threads: dict[str, int]) -> Iterator[TraceEvent]:
    yield _metadata_event("process_name", {"name": f"{graph.model}: one training step"}, _PHASES)
    for name, thread in {"phases": _PHASES, **threads}.items():
        yield _metadata_event("thread_name", {"name": name}, thread)
        yield _metadata_event("thread_sort_index", {"sort_index": thread}, thread)


def _metadata_event(name: str, args: dict[str, Any], thread: int) -> TraceEvent:
    return {
        "name": name,
        "ph": "M",
        "ts": 0,
        "pid": _PREDICTED_PROCESS,
        "tid": thread,
        "args": args,
    }


def _phase_events(steps: Sequence[ScheduleStep]) -> Iterator[TraceEvent]:
    loss = next((step for step in steps if isinstance(step.action, ComputeLoss)), None)
    end = max((step.end for step in steps), default=0.0)
    if loss is None:
        return
    spans = [
        ("forward", 0.0, loss.start),
        ("loss", loss.start, loss.end),
        ("backward", loss.end, end),
    ]
    for name, start, stop in spans:
        yield _complete_event(name, "phase", start, stop, _PHASES, {})


def _step_events(
    graph: Graph, steps: Sequence[ScheduleStep], threads: dict[str, int]
) -> Iterator[TraceEvent]:
    for effect in schedule_effects(graph, steps):
        step, op = effect.step, effect.op
        thread = threads[step.stream]
        args = {**_step_arguments(graph, step), "step": effect.position}
        if effect.runs and op is not None:
            again = effect.repeated and not graph.is_view(op)
            category = "recomputation" if again else op.phase
            yield _complete_event(op_label(op), category, step.start, step.end, thread, args)
            continue
        name = ACTION_NAMES[type(step.action)]
        if isinstance(step.action, TransferAction | Wait | OptimizerAction):
            kind = "update" if isinstance(step.action, OptimizerAction) else "transfer"
            yield _complete_event(name, kind, step.start, step.end, thread, args)
            continue
        yield {
            "name": _INSTANTS.get(name, name),
            "cat": "memory" if name == "free" else name,
            "ph": "i",
            "s": "t",
            "ts": _microseconds(step.start),
            "pid": _PREDICTED_PROCESS,
            "tid": thread,
            "args": args,
        }


def _step_arguments(graph: Graph, step: ScheduleStep) -> dict[str, Any]:
    """What a step works on; what does not apply is left out."""
    about: dict[str, Any] = {"live bytes": step.live, "peak bytes": step.peak}
    row = action_to_row(step.action)
    if row["op"] != NO_VALUE:
        op = graph.op(row["op"])
        about |= {"op": op.id, "target": op.target, "module": op.module, "source": op.source}
    if row["value"] != NO_VALUE:
        value = graph.values[row["value"]]
        about |= {"value": value.id, "shape": str(value.shape), "dtype": value.dtype}
        about["bytes"] = graph.storages[value.storage]
    if row["in_place"] != NO_VALUE:
        about["overwrites value"] = row["in_place"]
    return about


def _memory_events(steps: Sequence[ScheduleStep]) -> Iterator[TraceEvent]:
    """The counters: a step's most while it runs, what is live when it has ended. What a transfer
    takes is there from where it stands in the order, however late it begins."""
    now = 0.0
    for step in steps:
        if isinstance(step.action, TransferAction | UpdateOnHost | AccumulateOnHost):
            yield _counter_event(step, now, step.live)
            continue
        if step.peak != step.live:
            yield _counter_event(step, step.start, step.peak)
        yield _counter_event(step, step.end, step.live)
        now = step.end


def _measured_events(
    steps: Sequence[ScheduleStep], ran: Sequence[TimelinePoint]
) -> Iterator[TraceEvent]:
    """What was measured of a step, on its own clock."""
    own = (
        next((step.memory for step in steps if isinstance(step.action, ComputeLoss)), "")
        or "memory"
    )
    other = next((step.memory for step in steps if step.memory != own), "")
    names = {"planned": own, "offloaded": other or "offload target"}
    points = [point for point in ran if point.run in names]
    streams = measured_stream_spans(steps, ran, 0.0)
    if not points and not streams:
        return
    known: TraceEvent = {"ph": "M", "ts": 0, "pid": _MEASURED_PROCESS, "tid": 0}
    yield {**known, "name": "process_name", "args": {"name": "measured"}}
    for thread, (stream, kinds) in enumerate(streams.items(), start=1):
        yield {**known, "name": "thread_name", "tid": thread, "args": {"name": stream}}
        for kind, spans in kinds.items():
            for start, stop in spans:
                event = _complete_event(kind, "measured", start, stop, thread, {})
                yield {**event, "pid": _MEASURED_PROCESS}
    for point in sorted(points, key=lambda point: point.seconds):
        name = f"{names[point.run]}, measured"
        ts, args = _microseconds(point.seconds), {"bytes": point.live}
        yield {"name": name, "ph": "C", "ts": ts, "pid": _MEASURED_PROCESS, "tid": 0, "args": args}


def _counter_event(step: ScheduleStep, seconds: float, count: int) -> TraceEvent:
    return {
        "name": step.memory or "memory",
        "ph": "C",
        "ts": _microseconds(seconds),
        "pid": _PREDICTED_PROCESS,
        "tid": _PHASES,
        "args": {"bytes": count},
    }


def _complete_event(
    name: str, category: str, start: float, stop: float, thread: int, args: dict[str, Any]
) -> TraceEvent:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": _microseconds(start),
        "dur": round(_microseconds(stop) - _microseconds(start), 3),
        "pid": _PREDICTED_PROCESS,
        "tid": thread,
        "args": args,
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
