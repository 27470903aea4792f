"""The lanes of a plan with another memory as a picture: what each is busy with, over time, and the
bytes of that memory below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from schemas.actions import Transfer, Updating, Wait
from schemas.schedule import Step
from stages.report.scales import Scale, Tick
from stages.report.words import duration, size, tick

CELLS = 960
"""Widths that the step is cut into; a lane that is busy in one of them has a mark there."""

KINDS = {
    "computing": "computations",
    "updating": "updates of parameters",
    "moving": "tensors on their way",
    "passing": "states on their way",
    "waiting": "waiting for what is on its way",
}

Passing = tuple[str, float, float]
"""A lane, and from when to when states are on their way in it."""


@dataclass(frozen=True)
class Mark:
    """Spans of one kind in a lane, as path data in thousandths of the plot's width."""

    kind: str
    path: str


@dataclass(frozen=True)
class Lane:
    """A lane with its marks; `busy` is the part of the step in percent, without waiting."""

    name: str
    marks: list[Mark]
    busy: float


@dataclass(frozen=True)
class LanesPlot:
    """The lanes in the order of their first use, and the line of the other memory: `other` is its
    name, `peak` its most bytes, `line` path data. Places are percent."""

    lanes: list[Lane]
    kinds: dict[str, str]
    other: str
    peak: int
    line: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def lanes_plot(
    steps: Sequence[Step], passing: Sequence[Passing] = (), stays: int = 0
) -> LanesPlot | None:
    """The picture of a schedule as it was replayed; None where all of it is in one lane. `passing`
    are the transfers of states, which are no steps of their own; `stays` are the bytes that are in
    the other memory before the step and after it."""
    spans: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for lane, kind, start, end in (*_spans(steps), *((n, "passing", s, e) for n, s, e in passing)):
        spans.setdefault(lane, {}).setdefault(kind, []).append((start, end))
    if len(spans) < 2:
        return None
    seconds = max(end for kinds in spans.values() for every in kinds.values() for _, end in every)
    seconds = max(seconds, 1e-12)
    own = steps[0].memory
    levels = [(0.0, stays), *_levels(steps, own)]
    peak = max(level for _, level in levels)
    x, y = Scale(0.0, seconds), Scale(0.0, 1.06 * max(peak, 1), flipped=True)
    places = [(x.at(when), y.at(level)) for when, level in levels]
    used = {kind for kinds in spans.values() for kind in kinds}
    return LanesPlot(
        lanes=[_lane(name, kinds, seconds) for name, kinds in spans.items()],
        kinds={kind: name for kind, name in KINDS.items() if kind in used},
        other=next((step.memory for step in steps if step.memory != own), ""),
        peak=peak,
        line=_stairs(places),
        x_ticks=x.ticks(8, lambda seconds_: tick(duration(seconds_))),
        y_ticks=y.ticks(3, lambda bytes_: tick(size(bytes_))),
    )


def _spans(steps: Sequence[Step]) -> Iterator[tuple[str, str, float, float]]:
    """What takes time: lane, kind, begin and end."""
    for step in steps:
        if step.end <= step.start:
            continue
        kind = "computing"
        if isinstance(step.action, Transfer):
            kind = "moving"
        elif isinstance(step.action, Updating):
            kind = "updating"
        elif isinstance(step.action, Wait):
            kind = "waiting"
        yield step.lane, kind, step.start, step.end


def _lane(name: str, kinds: dict[str, list[tuple[float, float]]], seconds: float) -> Lane:
    marks = [Mark(kind, _path(kinds[kind], seconds)) for kind in KINDS if kind in kinds]
    busy = sum(end - start for kind in kinds if kind != "waiting" for start, end in kinds[kind])
    return Lane(name, marks, round(100 * busy / seconds, 1))


def _path(spans: Sequence[tuple[float, float]], seconds: float) -> str:
    """Boxes over the cells in which there is anything; short spans fill the part they take."""
    parts = []
    begin = end = -1.0
    for start, stop in sorted(spans):
        if start - end > seconds / CELLS or begin < 0:
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


def _levels(steps: Sequence[Step], own: str) -> Iterator[tuple[float, int]]:
    """The bytes of the other memory from each moment on at which they change, by the order of
    issue."""
    now, known = 0.0, -1
    for step in steps:
        if step.memory == own:
            now = step.end
        elif step.live != known:
            yield now, step.live
            known = step.live


def _stairs(places: Sequence[tuple[float, float]]) -> str:
    if not places:
        return ""
    rest = "".join(f"H{10 * x:.1f}V{10 * y:.1f}" for x, y in places[1:])
    return f"M{10 * places[0][0]:.1f} {10 * places[0][1]:.1f}{rest}H1000"
