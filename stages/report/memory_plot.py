"""The memory line as a picture: stacked areas over the step, other lines over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.measurement import TimelinePoint
from tightfit.stages.report.axes import AxisScale, AxisTick
from tightfit.stages.report.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_list,
    module_pattern,
    op_label,
    trim_decimals,
)
from tightfit.stages.report.memory_timeline import (
    MEMORY_OWNERS,
    PeakOccupant,
    StepTimeline,
    TimelineSegment,
    align_timeline,
)

PLOT_COLUMNS = 480
"""Widths that the step is cut into; each shows the highest moment within it."""

OWNER_NAMES = {
    "held": "outputs and their gradients",
    "gradients": "finished gradients",
    "brought": "parameters from the offload target",
    "kept": "kept from forward to backward",
    "working": "made and used up on the way",
}


@dataclass(frozen=True)
class OwnerArea:
    """One owner's band, as path data in thousandths of the plot."""

    owner: str
    name: str
    path: str


@dataclass(frozen=True)
class OccupancyRow:
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

    areas: list[OwnerArea]
    keep_all: str
    measured: str
    budget: float | None
    boundary: float
    peak_x: float
    peak_y: float
    x_ticks: list[AxisTick]
    y_ticks: list[AxisTick]
    occupancy: list[OccupancyRow]
    hover: dict[str, Any]


def plot_memory(
    graph: Graph,
    line: StepTimeline,
    budget: int | None,
    keep_all: StepTimeline | None,
    measured: Sequence[TimelinePoint] | None,
) -> MemoryPlot:
    """The memory line of a plan. `keep_all` is the line of the step that recomputes nothing, on
    the same axes; `measured` has its clock set by the prediction, since measuring takes time.
    """
    seconds = max(line.seconds, 1e-12)
    ran = [(point.seconds, point.live) for point in measured or [] if point.run == "planned"]
    ran = align_timeline(ran, line.levels, seconds)
    tops = [line.peak, *(level for _, level in ran)]
    tops += [keep_all.peak] if keep_all else []
    reach = max(tops)
    if budget is not None and budget <= 1.3 * reach:
        reach = max(reach, budget)
    x, y = AxisScale(0.0, seconds), AxisScale(0.0, 1.06 * max(reach, 1), flipped=True)
    cells = peak_segments(line.segments, seconds)
    return MemoryPlot(
        areas=_owner_areas(cells, y),
        keep_all=_outline_path(peak_segments(keep_all.segments, seconds), y) if keep_all else "",
        measured=_steps_path([(x.at(when), y.at(level)) for when, level in ran]),
        budget=y.at(budget) if budget is not None and 0 <= budget <= reach else None,
        boundary=x.at(line.boundary),
        peak_x=x.at(line.peak_at),
        peak_y=y.at(line.peak),
        x_ticks=x.ticks(8, lambda seconds_: trim_decimals(format_duration(seconds_))),
        y_ticks=y.ticks(6, lambda bytes_: trim_decimals(format_bytes(bytes_))),
        occupancy=peak_occupancy(graph, line),
        hover=_hover_data(graph, cells),
    )


def peak_segments(
    segments: Sequence[TimelineSegment], seconds: float
) -> list[TimelineSegment | None]:
    """The highest segment in each of COLUMNS equal stretches of a step, None after its end."""
    cells: list[TimelineSegment | None] = [None] * PLOT_COLUMNS
    for segment in segments:
        first = min(int(segment.start / seconds * PLOT_COLUMNS), PLOT_COLUMNS)
        last = min(int(segment.end / seconds * PLOT_COLUMNS), PLOT_COLUMNS - 1)
        for column in range(first, last + 1):
            cell = cells[column]
            if cell is None or segment.total > cell.total:
                cells[column] = segment
    return cells


def peak_occupancy(graph: Graph, line: StepTimeline, most: int = 12) -> list[OccupancyRow]:
    """Who holds the memory at the peak, like modules together, largest first, the rest in one last
    row."""
    whole = max(line.peak, 1)
    rows = []
    if line.peak_temporary > 0 and line.peak_op != NO_VALUE:
        op = graph.op(line.peak_op)
        note = f"outputs and temporaries of {op_label(op)}, which runs at the peak"
        rows.append(("working", op.module, line.peak_temporary, note))
    groups: dict[tuple[str, str], list[PeakOccupant]] = {}
    for occupant in line.occupants:
        groups.setdefault((occupant.owner, module_pattern(occupant.module)), []).append(occupant)
    for (owner, module), members in groups.items():
        storages = format_count(sum(member.storages for member in members), "storage")
        note = f"{storages} of {format_list([member.module or graph.model for member in members])}"
        rows.append((owner, module, sum(member.bytes for member in members), note))
    rows.sort(key=lambda row: (-row[2], row[1]))
    chosen = [
        OccupancyRow(module or graph.model, owner, OWNER_NAMES[owner], own, 100 * own / whole, note)
        for owner, module, own, note in rows[:most]
    ]
    rest = rows[most:]
    if rest:
        total = sum(row[2] for row in rest)
        name = f"{len(rest)} smaller"
        chosen.append(OccupancyRow(name, "", "all owners", total, 100 * total / whole, "together"))
    return chosen


def _owner_areas(cells: Sequence[TimelineSegment | None], y: AxisScale) -> list[OwnerArea]:
    areas = []
    below = [0.0] * PLOT_COLUMNS
    for index, owner in enumerate(MEMORY_OWNERS):
        above = [
            low + (cell.bytes[index] if cell else 0) for low, cell in zip(below, cells, strict=True)
        ]
        if owner in _shown_owners(cells):
            areas.append(OwnerArea(owner, OWNER_NAMES[owner], _band_path(below, above, y)))
        below = above
    return areas


def _shown_owners(cells: Sequence[TimelineSegment | None]) -> list[str]:
    """The owners that a plot has; parameters that are brought where there are some."""
    place = MEMORY_OWNERS.index("brought")
    brought = any(cell.bytes[place] for cell in cells if cell)
    return [owner for owner in MEMORY_OWNERS if brought or owner != "brought"]


def _band_path(below: list[float], above: list[float], y: AxisScale) -> str:
    """The outline of a band: along its top to the right, along its bottom back."""
    top = _level_runs([10 * y.at(level) for level in above])
    bottom = _level_runs([10 * y.at(level) for level in below])
    parts = [f"M0 {top[0][2]:.0f}"]
    parts += [f"V{level:.0f}H{end:.0f}" for _, end, level in top]
    parts += [f"V{level:.0f}H{start:.0f}" for start, _, level in reversed(bottom)]
    return "".join(parts) + "Z"


def _level_runs(levels: Sequence[float]) -> list[tuple[float, float, float]]:
    """Stretches of equal level (start, end, level), places in thousandths."""
    width = 1000 / PLOT_COLUMNS
    runs: list[tuple[float, float, float]] = []
    for index, level in enumerate(round(level) for level in levels):
        if runs and runs[-1][2] == level:
            runs[-1] = (runs[-1][0], (index + 1) * width, level)
        else:
            runs.append((index * width, (index + 1) * width, level))
    return runs


def _outline_path(cells: Sequence[TimelineSegment | None], y: AxisScale) -> str:
    heights = [10 * y.at(cell.total) for cell in cells if cell]
    if not heights:
        return ""
    runs = _level_runs(heights)
    return f"M0 {runs[0][2]:.0f}" + "".join(f"V{lev:.0f}H{end:.0f}" for _, end, lev in runs)


def _steps_path(points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    rest = "".join(f"H{10 * x:.1f}V{10 * y:.1f}" for x, y in points[1:])
    return f"M{10 * points[0][0]:.1f} {10 * points[0][1]:.1f}{rest}"


def _hover_data(graph: Graph, cells: Sequence[TimelineSegment | None]) -> dict[str, Any]:
    """Per column: the second, the bytes by owner, and the index of a text that names the op."""
    texts: dict[str, int] = {}
    shown = _shown_owners(cells)
    rows: list[list[float] | None] = []
    for cell in cells:
        if cell is None:
            rows.append(None)
            continue
        op = graph.op(cell.op)
        text = f"{op_label(op)} · {op.module or graph.model} · {op.phase}"
        own = [
            amount for name, amount in zip(MEMORY_OWNERS, cell.bytes, strict=True) if name in shown
        ]
        rows.append([round(cell.start, 7), *own, texts.setdefault(text, len(texts))])
    owners = [OWNER_NAMES[owner] for owner in shown]
    return {"columns": rows, "ops": list(texts), "owners": owners}
