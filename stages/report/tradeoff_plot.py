"""The trade-off curve: time relative to the eager step against the step's peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightfit.schemas.frontier import Frontier
from tightfit.schemas.plan import Plan
from tightfit.stages.report.axes import (
    AxisScale,
    AxisTick,
    assign_label_rows,
    fit_scale,
    staircase_path,
)
from tightfit.stages.report.formatting import format_bytes, format_ratio, trim_decimals
from tightfit.stages.report.load import ModelResults, PlanResult
from tightfit.stages.report.outcomes import reason_not_validated
from tightfit.util.budget import NO_BUDGET
from tightfit.util.strategies import baseline_names

_STRATEGY_COLORS = {"rockmate": 1, "rotor": 2, "checkpoint_all": 3, "keep_all": 0}
_SPARE_COLORS = (4, 5, 6, 7)
EAGER_SUFFIX = ", eager's kernels"
_LABEL_WIDTH = 15.0
_LABEL_ROWS = 3


@dataclass(frozen=True)
class PlanMark:
    """One plan on the plot: place in percent, text for the tooltip, and what it is about.

    `low` and `high` are the heights of the quartiles of the measured ratio, None where there are
    none. `plan` names the plan's panel on the page, "" for a point of the frontier alone.
    """

    x: float
    y: float
    tip: str
    plan: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """One strategy: its predicted frontier as a path, and its marks."""

    strategy: str
    ink: int
    baseline: bool
    path: str
    predicted: list[PlanMark]
    measured: list[PlanMark]


@dataclass(frozen=True)
class BudgetLine:
    """A budget: its place, how it is written, and its label's row (-1: no room for a label)."""

    x: float
    label: str
    tip: str
    row: int


@dataclass(frozen=True)
class TradeoffPlot:
    """The plot, all places in percent. `floor` is where the least possible peak lies, `unit` the
    height of the eager step's time."""

    series: list[Series]
    budgets: list[BudgetLine]
    x_ticks: list[AxisTick]
    y_ticks: list[AxisTick]
    floor: float | None
    floor_tip: str
    unit: float
    label_rows: int
    ran: bool
    """Whether the marks of plans are of runs; else they are of predictions."""


@dataclass(frozen=True)
class PlotPoint:
    """A plan, measured or for a device that is not here: peak bytes, time ratio with its quartiles,
    and what it is of."""

    peak: int
    ratio: float
    quartiles: tuple[float, float] | None
    result: PlanResult


def strategy_colors(strategies: Sequence[str]) -> dict[str, int]:
    """A color number for each strategy: the same for the same strategy on every page."""
    spare = [name for name in sorted(strategies) if name not in _STRATEGY_COLORS]
    extra = {name: _SPARE_COLORS[i % len(_SPARE_COLORS)] for i, name in enumerate(spare)}
    return {name: _STRATEGY_COLORS.get(name, extra.get(name, 0)) for name in strategies}


def strategy_order(results: ModelResults) -> list[str]:
    """The strategies of a model, baselines last."""
    names = {*model_frontiers(results), *(result.plan.strategy for result in results.plans)}
    known, last = list(_STRATEGY_COLORS), baseline_names()
    return sorted(
        names,
        key=lambda name: (name in last, known.index(name) if name in known else 9, name),
    )


def model_frontiers(results: ModelResults) -> dict[str, tuple[Frontier, float]]:
    """The frontiers of a model by name, with the pace of their kernels: those of its strategies
    and, where fused kernels are compared with eager's, those of eager's."""
    found = {name: (frontier, results.pace) for name, frontier in results.frontiers.items()}
    beside = {} if results.beside is None else results.beside.frontiers
    return found | {
        f"{name}{EAGER_SUFFIX}": (frontier, 1.0)
        for name, frontier in beside.items()
        if name not in baseline_names()
    }


def plan_name(plan: Plan) -> str:
    """A plan in a few words: "rockmate at 50%"; one of eager's kernels that took the place of one
    of fused ones says so."""
    name = plan.strategy if plan.budget == NO_BUDGET else f"{plan.strategy} at {plan.budget_label}"
    return (
        f"{name}{EAGER_SUFFIX}"
        if plan.kernels == "eager" and plan.competing_plan is not None
        else name
    )


def plot_points(plans: Sequence[PlanResult]) -> list[PlotPoint]:
    """The plans of which peak and time were measured, and as predicted those for a device that is
    not here."""
    dots = []
    for result in plans:
        found, plan, relative = result.measurement, result.plan, result.relative
        if reason_not_validated(result) and plan.peak is not None and relative is not None:
            dots.append(PlotPoint(plan.peak, relative, None, result))
        if found is None or found.measured_peak is None or found.time_ratio is None:
            continue
        low, high = found.time_ratio_first_quartile, found.time_ratio_third_quartile
        quartiles = (low, high) if low is not None and high is not None else None
        dots.append(PlotPoint(found.measured_peak, found.time_ratio, quartiles, result))
    return dots


def relative_points(frontier: Frontier, pace: float) -> list[tuple[int, float]]:
    """Peak and time relative to keep-all of a frontier's points, by rising peak; keep-all's own
    time is `pace` of the original's."""
    unit = (frontier.keep_all_seconds or 1.0) / pace
    return sorted((point.peak, point.seconds / unit) for point in frontier.points)


def plot_tradeoff(results: ModelResults, panels: Mapping[str, str]) -> TradeoffPlot | None:
    """The curve of a model, None when nothing was planned. `panels` names each plan's panel by
    the folder of the plan."""
    known = model_frontiers(results)
    frontiers = {name: relative_points(*found) for name, found in known.items()}
    dots = plot_points(results.plans)
    places = [point for points in frontiers.values() for point in points]
    places += [(dot.peak, dot.ratio) for dot in dots]
    if not places:
        return None
    floor = _peak_lower_bound(results)
    budgets = _budgets(results.plans)
    widest = max(peak for peak, _ in places)
    shown = [b for b in budgets if b <= 1.15 * widest]
    x = fit_scale([*(peak for peak, _ in places), floor or widest, *shown], 0.04)
    heights = [1.0, *(height for _, height in places)]
    heights += [end for dot in dots for end in dot.quartiles or ()]
    y = fit_scale(heights, 0.06, flipped=True)
    names = strategy_order(results)
    colors = strategy_colors(names)
    lines = _budget_lines(shown, budgets, x)
    return TradeoffPlot(
        series=[
            Series(
                strategy=name,
                ink=colors[name],
                baseline=name in baseline_names(),
                path=staircase_path([(x.at(p), y.at(t)) for p, t in frontiers.get(name, [])]),
                predicted=_predicted_marks(name, frontiers.get(name, []), x, y),
                measured=[
                    _plan_mark(dot, x, y, panels)
                    for dot in dots
                    if dot.result.plan.strategy == name
                ],
            )
            for name in names
        ],
        budgets=lines,
        x_ticks=x.ticks(8, lambda bytes_: trim_decimals(format_bytes(bytes_))),
        y_ticks=y.ticks(8, format_ratio),
        floor=x.at(floor) if floor else None,
        floor_tip=f"No plan of this step has a peak below {format_bytes(floor)}" if floor else "",
        unit=y.at(1.0),
        label_rows=1 + max((line.row for line in lines), default=-1),
        ran=any(dot.result.measurement is not None for dot in dots),
    )


def _peak_lower_bound(results: ModelResults) -> int:
    """The bytes that no plan goes below, whichever kernels it runs; 0 where that is not known."""
    kinds = [results.frontiers, {} if results.beside is None else results.beside.frontiers]
    bounds = [[f.lower_bound_peak for f in frontiers.values()] for frontiers in kinds if frontiers]
    return min((max(each) for each in bounds), default=0)


def _budgets(plans: Sequence[PlanResult]) -> dict[int, list[str]]:
    """The budgets asked for: bytes for the step, with the ways they were written."""
    found: dict[int, list[str]] = {}
    for result in plans:
        if result.plan.budget_bytes is not None:
            names = found.setdefault(result.plan.budget_bytes, [])
            if result.plan.budget not in names:
                names.append(result.plan.budget)
    return dict(sorted(found.items()))


def _budget_lines(shown: list[int], names: dict[int, list[str]], x: AxisScale) -> list[BudgetLine]:
    rows = assign_label_rows([x.at(b) for b in shown], _LABEL_WIDTH, _LABEL_ROWS)
    lines = []
    for budget, row in zip(shown, rows, strict=True):
        label = ", ".join(names[budget]) or format_bytes(budget)
        lines.append(
            BudgetLine(
                x.at(budget), label, f"Budget {label}: {format_bytes(budget)} for the step", row
            )
        )
    return lines


def _predicted_marks(
    name: str, points: list[tuple[int, float]], x: AxisScale, y: AxisScale
) -> list[PlanMark]:
    return [
        PlanMark(
            x.at(p),
            y.at(t),
            f"{name}, predicted\n{format_bytes(p)}, {format_ratio(t)} the eager step",
        )
        for p, t in points
    ]


def _plan_mark(dot: PlotPoint, x: AxisScale, y: AxisScale, panels: Mapping[str, str]) -> PlanMark:
    plan = dot.result.plan
    lines = [
        f"{plan_name(plan)}, {'predicted' if dot.result.measurement is None else 'measured'}",
        f"{format_bytes(dot.peak)}, {format_ratio(dot.ratio)} the eager step",
    ]
    if dot.quartiles:
        lines.append(f"quartiles {dot.quartiles[0]:.3f} to {dot.quartiles[1]:.3f}")
    ends = [y.at(end) for end in dot.quartiles] if dot.quartiles else [None, None]
    return PlanMark(
        x=x.at(dot.peak),
        y=y.at(dot.ratio),
        tip="\n".join(lines),
        plan=panels.get(dot.result.folder, ""),
        low=ends[0],
        high=ends[1],
    )
