"""The memory line as a picture: stacked areas over the step, other lines over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.measurement import LinePoint
from tightfit.stages.report.aligning import aligned
from tightfit.stages.report.scales import Scale, Tick
from tightfit.stages.report.timeline import OWNERS, Occupant, Segment, Timeline
from tightfit.stages.report.words import count, duration, listing, named, pattern, size, tick

COLUMNS = 480
"""Widths that the step is cut into; each shows the highest moment within it."""

OWNER_NAMES = {
    "held": "outputs and their gradients",
    "gradients": "finished gradients",
    "brought": "parameters from the other memory",
    "kept": "kept from forward to backward",
    "working": "made and used up on the way",
}


@dataclass(frozen=True)
class Area:
    """One owner's band, as path data in thousandths of the plot."""

    owner: str
    name: str
    path: str


@dataclass(frozen=True)
class Occupancy:
    """Who holds the memory at the peak: a row of a bar list, `share` of the peak in percent."""

    module: str
    owner: str
    name: str
    bytes: int
    share: float
    note: str


@dataclass(frozen=True)
class MemoryPlot:
    """The plot, all places in percent; `hover` is what the page's script needs to tell what runs
    under the pointer, as JSON data."""

    areas: list[Area]
    unplanned: str
    measured: str
    budget: float | None
    boundary: float
    peak_x: float
    peak_y: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    occupancy: list[Occupancy]
    hover: dict[str, Any]


def memory_plot(
    graph: Graph,
    line: Timeline,
    budget: int | None,
    unplanned: Timeline | None,
    measured: Sequence[LinePoint] | None,
) -> MemoryPlot:
    """The memory line of a plan. `unplanned` is the line of the step that recomputes nothing, on
    the same axes; `measured` has its clock set by the prediction, since measuring takes time.
    """
    seconds = max(line.seconds, 1e-12)
    ran = [(point.seconds, point.live) for point in measured or [] if point.run == "planned"]
    ran = aligned(ran, line.levels, seconds)
    tops = [line.peak, *(level for _, level in ran)]
    tops += [unplanned.peak] if unplanned else []
    reach = max(tops)
    if budget is not None and budget <= 1.3 * reach:
        reach = max(reach, budget)
    x, y = Scale(0.0, seconds), Scale(0.0, 1.06 * max(reach, 1), flipped=True)
    cells = columns(line.segments, seconds)
    return MemoryPlot(
        areas=_areas(cells, y),
        unplanned=_outline(columns(unplanned.segments, seconds), y) if unplanned else "",
        measured=_steps([(x.at(when), y.at(level)) for when, level in ran]),
        budget=y.at(budget) if budget is not None and 0 <= budget <= reach else None,
        boundary=x.at(line.boundary),
        peak_x=x.at(line.peak_at),
        peak_y=y.at(line.peak),
        x_ticks=x.ticks(8, lambda seconds_: tick(duration(seconds_))),
        y_ticks=y.ticks(6, lambda bytes_: tick(size(bytes_))),
        occupancy=occupancy(graph, line),
        hover=_hover(graph, cells),
    )


def columns(segments: Sequence[Segment], seconds: float) -> list[Segment | None]:
    """The highest segment in each of COLUMNS equal stretches of a step, None after its end."""
    cells: list[Segment | None] = [None] * COLUMNS
    for segment in segments:
        first = min(int(segment.start / seconds * COLUMNS), COLUMNS)
        last = min(int(segment.end / seconds * COLUMNS), COLUMNS - 1)
        for column in range(first, last + 1):
            cell = cells[column]
            if cell is None or segment.total > cell.total:
                cells[column] = segment
    return cells


def occupancy(graph: Graph, line: Timeline, most: int = 12) -> list[Occupancy]:
    """Who holds the memory at the peak, like modules together, largest first, the rest in one last
    row."""
    whole = max(line.peak, 1)
    rows = []
    if line.peak_temporary > 0 and line.peak_op != NONE:
        op = graph.op(line.peak_op)
        note = f"outputs and temporaries of {named(op)}, which runs at the peak"
        rows.append(("working", op.module, line.peak_temporary, note))
    groups: dict[tuple[str, str], list[Occupant]] = {}
    for occupant in line.occupants:
        groups.setdefault((occupant.owner, pattern(occupant.module)), []).append(occupant)
    for (owner, module), members in groups.items():
        storages = count(sum(member.storages for member in members), "storage")
        note = f"{storages} of {listing([member.module or graph.model for member in members])}"
        rows.append((owner, module, sum(member.bytes for member in members), note))
    rows.sort(key=lambda row: (-row[2], row[1]))
    chosen = [
        Occupancy(module or graph.model, owner, OWNER_NAMES[owner], own, 100 * own / whole, note)
        for owner, module, own, note in rows[:most]
    ]
    rest = rows[most:]
    if rest:
        total = sum(row[2] for row in rest)
        name = f"{len(rest)} smaller"
        chosen.append(Occupancy(name, "", "all owners", total, 100 * total / whole, "together"))
    return chosen


def _areas(cells: Sequence[Segment | None], y: Scale) -> list[Area]:
    areas = []
    below = [0.0] * COLUMNS
    for index, owner in enumerate(OWNERS):
        above = [
            low + (cell.bytes[index] if cell else 0) for low, cell in zip(below, cells, strict=True)
        ]
        if owner in _shown(cells):
            areas.append(Area(owner, OWNER_NAMES[owner], _band(below, above, y)))
        below = above
    return areas


def _shown(cells: Sequence[Segment | None]) -> list[str]:
    """The owners that a plot has; parameters that are brought where there are some."""
    place = OWNERS.index("brought")
    brought = any(cell.bytes[place] for cell in cells if cell)
    return [owner for owner in OWNERS if brought or owner != "brought"]


def _band(below: list[float], above: list[float], y: Scale) -> str:
    """The outline of a band: along its top to the right, along its bottom back."""
    top = _runs([10 * y.at(level) for level in above])
    bottom = _runs([10 * y.at(level) for level in below])
    parts = [f"M0 {top[0][2]:.0f}"]
    parts += [f"V{level:.0f}H{end:.0f}" for _, end, level in top]
    parts += [f"V{level:.0f}H{start:.0f}" for start, _, level in reversed(bottom)]
    return "".join(parts) + "Z"


def _runs(levels: Sequence[float]) -> list[tuple[float, float, float]]:
    """Stretches of equal level (start, end, level), places in thousandths."""
    width = 1000 / COLUMNS
    runs: list[tuple[float, float, float]] = []
    for index, level in enumerate(round(level) for level in levels):
        if runs and runs[-1][2] == level:
            runs[-1] = (runs[-1][0], (index + 1) * width, level)
        else:
            runs.append((index * width, (index + 1) * width, level))
    return runs


def _outline(cells: Sequence[Segment | None], y: Scale) -> str:
    heights = [10 * y.at(cell.total) for cell in cells if cell]
    if not heights:
        return ""
    runs = _runs(heights)
    return f"M0 {runs[0][2]:.0f}" + "".join(f"V{lev:.0f}H{end:.0f}" for _, end, lev in runs)


def _steps(points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    rest = "".join(f"H{10 * x:.1f}V{10 * y:.1f}" for x, y in points[1:])
    return f"M{10 * points[0][0]:.1f} {10 * points[0][1]:.1f}{rest}"


def _hover(graph: Graph, cells: Sequence[Segment | None]) -> dict[str, Any]:
    """Per column: the second, the bytes by owner, and the index of a text that names the op."""
    texts: dict[str, int] = {}
    shown = _shown(cells)
    rows: list[list[float] | None] = []
    for cell in cells:
        if cell is None:
            rows.append(None)
            continue
        op = graph.op(cell.op)
        text = f"{named(op)} · {op.module or graph.model} · {op.phase}"
        own = [amount for name, amount in zip(OWNERS, cell.bytes, strict=True) if name in shown]
        rows.append([round(cell.start, 7), *own, texts.setdefault(text, len(texts))])
    owners = [OWNER_NAMES[owner] for owner in shown]
    return {"columns": rows, "ops": list(texts), "owners": owners}
