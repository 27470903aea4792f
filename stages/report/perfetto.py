"""A schedule as a trace file for Perfetto and chrome://tracing, in the Trace Event Format.

Complete events ("X") for what runs, counters ("C") for memory, instants ("i") for what takes no
time, metadata ("M") for names. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tightfit.schemas.actions import (
    NAMES,
    Accumulate,
    Loss,
    OptimiseAway,
    Transfer,
    Updating,
    Wait,
    row_of,
)
from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.measurement import LinePoint
from tightfit.schemas.schedule import Step
from tightfit.stages.replay.walk import effects
from tightfit.stages.report.lanes import measured_lanes
from tightfit.stages.report.words import named

TraceEvent = dict[str, Any]

_PROCESS, _RAN = 1, 2
_PHASES = 1
_FIRST_LANE = 2
_INSTANTS = {
    "gradient": "gradient handed over",
    "save_random": "random state saved",
    "restore_random": "random state restored",
}


def trace_events(
    graph: Graph,
    steps: Sequence[Step],
    passing: Sequence[tuple[str, float, float]] = (),
    ran: Sequence[LinePoint] = (),
) -> dict[str, Any]:
    """The trace document of a replayed schedule: JSON-ready, events by rising time.

    Lanes are threads, in the order they are first used; above them lies one with the phases. Each
    memory is a counter of its live bytes, at its most while an op runs. An op that ran before is of
    the category "recomputation". `passing` are the transfers of states (`Replay.passing`). The
    lines of a step that `ran` are a process of their own: counters of both memories, and its lanes.
    """
    lanes = list(dict.fromkeys((*(step.lane for step in steps), *(lane for lane, *_ in passing))))
    threads = {lane: _FIRST_LANE + index for index, lane in enumerate(lanes)}
    events = [*_phases(graph, steps), *_steps(graph, steps, threads), *_memory(steps)]
    events += [
        _complete("states", "transfer", start, end, threads[lane], {})
        for lane, start, end in passing
    ]
    measured = list(_measured(steps, ran))
    events.sort(key=lambda event: event["ts"])
    return {
        "traceEvents": [*_names(graph, threads), *events, *measured],
        "displayTimeUnit": "ms",
        "otherData": {"model": graph.model, "device": graph.device, "torch": graph.torch},
    }


def _names(graph: Graph, threads: dict[str, int]) -> Iterator[TraceEvent]:
    yield _metadata("process_name", {"name": f"{graph.model}: one training step"}, _PHASES)
    for name, thread in {"phases": _PHASES, **threads}.items():
        yield _metadata("thread_name", {"name": name}, thread)
        yield _metadata("thread_sort_index", {"sort_index": thread}, thread)


def _metadata(name: str, args: dict[str, Any], thread: int) -> TraceEvent:
    return {"name": name, "ph": "M", "ts": 0, "pid": _PROCESS, "tid": thread, "args": args}


def _phases(graph: Graph, steps: Sequence[Step]) -> Iterator[TraceEvent]:
    loss = next((step for step in steps if isinstance(step.action, Loss)), None)
    end = max((step.end for step in steps), default=0.0)
    if loss is None:
        return
    spans = [
        ("forward", 0.0, loss.start),
        ("loss", loss.start, loss.end),
        ("backward", loss.end, end),
    ]
    for name, start, stop in spans:
        yield _complete(name, "phase", start, stop, _PHASES, {})


def _steps(graph: Graph, steps: Sequence[Step], threads: dict[str, int]) -> Iterator[TraceEvent]:
    for effect in effects(graph, steps):
        step, op = effect.step, effect.op
        thread = threads[step.lane]
        args = {**_about(graph, step), "step": effect.position}
        if effect.runs and op is not None:
            again = effect.repeated and not graph.is_view(op)
            category = "recomputation" if again else op.phase
            yield _complete(named(op), category, step.start, step.end, thread, args)
            continue
        name = NAMES[type(step.action)]
        if isinstance(step.action, Transfer | Wait | Updating):
            kind = "update" if isinstance(step.action, Updating) else "transfer"
            yield _complete(name, kind, step.start, step.end, thread, args)
            continue
        yield {
            "name": _INSTANTS.get(name, name),
            "cat": "memory" if name == "free" else name,
            "ph": "i",
            "s": "t",
            "ts": _micro(step.start),
            "pid": _PROCESS,
            "tid": thread,
            "args": args,
        }


def _about(graph: Graph, step: Step) -> dict[str, Any]:
    """What a step works on; what does not apply is left out."""
    about: dict[str, Any] = {"live bytes": step.live, "peak bytes": step.peak}
    row = row_of(step.action)
    if row["op"] != NONE:
        op = graph.op(row["op"])
        about |= {"op": op.id, "target": op.target, "module": op.module, "source": op.source}
    if row["value"] != NONE:
        value = graph.values[row["value"]]
        about |= {"value": value.id, "shape": str(value.shape), "dtype": value.dtype}
        about["bytes"] = graph.storages[value.storage]
    if row["in_place"] != NONE:
        about["overwrites value"] = row["in_place"]
    return about


def _memory(steps: Sequence[Step]) -> Iterator[TraceEvent]:
    """The counters: a step's most while it runs, what is live when it has ended. What a transfer
    takes is there from where it stands in the order, however late it begins."""
    now = 0.0
    for step in steps:
        if isinstance(step.action, Transfer | OptimiseAway | Accumulate):
            yield _counter(step, now, step.live)
            continue
        if step.peak != step.live:
            yield _counter(step, step.start, step.peak)
        yield _counter(step, step.end, step.live)
        now = step.end


def _measured(steps: Sequence[Step], ran: Sequence[LinePoint]) -> Iterator[TraceEvent]:
    """What was measured of a step, on its own clock."""
    own = next((step.memory for step in steps if isinstance(step.action, Loss)), "") or "memory"
    other = next((step.memory for step in steps if step.memory != own), "")
    names = {"planned": own, "slow": other or "other memory"}
    points = [point for point in ran if point.run in names]
    lanes = measured_lanes(steps, ran, 0.0)
    if not points and not lanes:
        return
    known: TraceEvent = {"ph": "M", "ts": 0, "pid": _RAN, "tid": 0}
    yield {**known, "name": "process_name", "args": {"name": "measured"}}
    for thread, (lane, kinds) in enumerate(lanes.items(), start=1):
        yield {**known, "name": "thread_name", "tid": thread, "args": {"name": lane}}
        for kind, spans in kinds.items():
            for start, stop in spans:
                event = _complete(kind, "measured", start, stop, thread, {})
                yield {**event, "pid": _RAN}
    for point in sorted(points, key=lambda point: point.seconds):
        name = f"{names[point.run]}, measured"
        ts, args = _micro(point.seconds), {"bytes": point.live}
        yield {"name": name, "ph": "C", "ts": ts, "pid": _RAN, "tid": 0, "args": args}


def _counter(step: Step, seconds: float, count: int) -> TraceEvent:
    return {
        "name": step.memory or "memory",
        "ph": "C",
        "ts": _micro(seconds),
        "pid": _PROCESS,
        "tid": _PHASES,
        "args": {"bytes": count},
    }


def _complete(
    name: str, category: str, start: float, stop: float, thread: int, args: dict[str, Any]
) -> TraceEvent:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": _micro(start),
        "dur": round(_micro(stop) - _micro(start), 3),
        "pid": _PROCESS,
        "tid": thread,
        "args": args,
    }


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
