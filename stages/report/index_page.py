"""The index of a run: a row for each plan and for each failure, of all models together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from tightfit.stages.report.axes import AxisScale, fit_scale, staircase_path
from tightfit.stages.report.load import MODEL_PAGE_FILE, NOT_PLANNED_YET, ModelResults, PlanResult
from tightfit.stages.report.model_page import panel_id
from tightfit.stages.report.outcomes import (
    DAMAGED,
    Severity,
    optimality_label,
    plan_outcome,
    reason_not_validated,
)
from tightfit.stages.report.plan_rows import PlanRow
from tightfit.stages.report.tradeoff_plot import (
    model_frontiers,
    relative_points,
    strategy_colors,
    strategy_order,
)
from tightfit.util.budget import NO_BUDGET

_MARGIN = 0.08


@dataclass(frozen=True)
class Sparkline:
    """A model's small curve: the best times that any strategy or plan predicts, as path data in
    thousandths of the picture. `id` names it on the page."""

    id: str
    path: str


@dataclass(frozen=True)
class IndexRow:
    """One plan, or one failure where there is no plan. `link` leads to the model's page, `spark`
    names its small curve and `dot` is where the plan lies beside it, as it was predicted, in
    thousandths; "" and None where there is none. `scattered` and
    `as_planned` are those of its outcome."""

    model: str
    strategy: str
    budget: str
    budget_bytes: int | None
    link: str
    ink: int
    state: Severity
    word: str
    predicted: int | None
    measured: int | None
    resident: int | None
    ratio: float | None
    scattered: bool
    gap: float | None
    words: str
    spark: str
    dot: tuple[float, float] | None
    as_planned: bool = False


@dataclass(frozen=True)
class RunIndex:
    """The index: `tally` counts models, chains and plans, and rows by what became of them."""

    rows: list[IndexRow]
    sparks: list[Sparkline]
    tally: list[tuple[str, int]]
    models: list[str]
    strategies: list[str]
    words: list[str]


def build_run_index(
    models: Sequence[ModelResults],
    plan_rows: Sequence[PlanRow] = (),
    further: Sequence[IndexRow] = (),
) -> RunIndex:
    """The index of a run, models in the order given, each with its `plan_rows`, which are plans of
    no budget, and `further` rows behind them, of what is no model."""
    rows: list[IndexRow] = []
    sparks = []
    named = {name for model in models for name in strategy_order(model)}
    colors = strategy_colors(sorted(named | {row.folder.strategy for row in plan_rows}))
    for number, model in enumerate(models):
        spark, scales = _build_sparkline(model, f"curve-{number}")
        if spark is not None:
            sparks.append(spark)
        own = _model_rows(model, colors, spark.id if spark else "", scales)
        own += [_plan_row_line(row, colors) for row in plan_rows if row.folder.model == model.name]
        if model.error and not any(model.error in row.words for row in own):
            link = _model_link(model)
            own.insert(0, _failure_row(model.name, "", "", link, 0, model.error))
        rows += own
    names = [model.name for model in models]
    alone = [row for row in plan_rows if row.folder.model not in names]
    rows += [*(_plan_row_line(row, colors) for row in alone), *further]
    names += dict.fromkeys(row.folder.model for row in alone)
    chains = [*dict.fromkeys(row.model for row in further)]
    plans = sum(len(model.plans) for model in models) + sum(bool(row.status) for row in plan_rows)
    plans += sum(row.word not in ("not planned", "failed") for row in further)
    return RunIndex(
        rows=rows,
        sparks=sparks,
        tally=[*_count_subjects(len(names), len(chains), plans), *_count_outcomes(rows)],
        models=[*names, *chains],
        strategies=sorted({row.strategy for row in rows if row.strategy}),
        words=sorted({row.word for row in rows}),
    )


def _build_sparkline(
    model: ModelResults, name: str
) -> tuple[Sparkline | None, tuple[AxisScale, AxisScale] | None]:
    points = [
        point for found in model_frontiers(model).values() for point in relative_points(*found)
    ]
    points += [place for place in map(_predicted_place, model.plans) if place is not None]
    points.sort()
    best: list[tuple[int, float]] = []
    for peak, height in points:
        if not best or height < best[-1][1]:
            best.append((peak, height))
    if not best:
        return None, None
    x = fit_scale([peak for peak, _ in points], _MARGIN)
    y = fit_scale([1.0, *(height for _, height in points)], _MARGIN, flipped=True)
    best.append((points[-1][0], best[-1][1]))
    return Sparkline(name, staircase_path([(x.at(p), y.at(h)) for p, h in best])), (x, y)


def _predicted_place(result: PlanResult) -> tuple[int, float] | None:
    """The predicted peak of a plan and its predicted time beside the eager step's, None where
    there is no plan."""
    plan, relative = result.plan, result.relative
    if not plan.feasible or plan.peak is None or relative is None:
        return None
    return plan.peak, relative


def _model_link(model: ModelResults) -> str:
    """The address of a model's page, "" where there is none."""
    return f"{quote(model.name)}/{MODEL_PAGE_FILE}" if model.shown else ""


def _model_rows(
    model: ModelResults,
    colors: dict[str, int],
    spark: str,
    scales: tuple[AxisScale, AxisScale] | None,
) -> list[IndexRow]:
    rows, link = {}, _model_link(model)
    for folder, message in {**model.failures, **model.damaged}.items():
        strategy, _, budget = folder.partition("/")
        row = _failure_row(model.name, strategy, budget, link, colors.get(strategy, 0), message)
        rows[folder] = replace(row, word=DAMAGED) if folder in model.damaged else row
    for plan in model.plans:
        rows[plan.folder] = _plan_row(model.name, plan, link, colors, spark, scales)
    return [rows[folder] for folder in order_points(model)]


def order_points(model: ModelResults) -> list[str]:
    """The points of a model, as strategy/budget, in the order in which the index and the table list
    them: that of the configuration or, if that is not known, those without a plan first, then
    strategy by strategy from the largest budget on."""
    order = strategy_order(model)
    plans = sorted(
        model.plans,
        key=lambda result: (
            order.index(result.plan.strategy),
            -(result.plan.budget_bytes or 0),
            result.folder,
        ),
    )
    missing = sorted({**model.failures, **model.damaged})
    found = dict.fromkeys([*missing, *(result.folder for result in plans)])
    place = {point: number for number, point in enumerate(model.planned)}
    return sorted(found, key=lambda point: place.get(point, len(place)))


def _failure_row(
    model: str, strategy: str, budget: str, link: str, ink: int, message: str
) -> IndexRow:
    return IndexRow(
        model=model,
        strategy=strategy,
        budget=format_budget_folder(budget),
        budget_bytes=None,
        link=link,
        ink=ink,
        state="bad",
        word="not planned" if message == NOT_PLANNED_YET else "failed",
        predicted=None,
        measured=None,
        resident=None,
        ratio=None,
        scattered=False,
        gap=None,
        words=message,
        spark="",
        dot=None,
    )


def _plan_row(
    model: str,
    result: PlanResult,
    link: str,
    colors: dict[str, int],
    spark: str,
    scales: tuple[AxisScale, AxisScale] | None,
) -> IndexRow:
    plan, found, place = result.plan, plan_outcome(result), _predicted_place(result)
    dot = None
    if scales is not None and place is not None:
        x, y = scales
        dot = (10 * x.at(place[0]), 10 * y.at(place[1]))
    return IndexRow(
        model=model,
        strategy=plan.strategy,
        budget="" if plan.budget == NO_BUDGET else plan.budget_label,
        budget_bytes=plan.budget_bytes,
        link=f"{link}#{quote(panel_id(result.folder))}" if link else "",
        ink=colors[plan.strategy],
        state=found.state,
        word=found.word,
        predicted=plan.peak,
        measured=found.peak if found.measured else None,
        resident=result.measurement.resident_peak if result.measurement else None,
        ratio=found.ratio,
        scattered=found.scattered,
        gap=plan.gap if plan.feasible else None,
        words=found.message if found.state == "bad" else _row_note(result),
        spark=spark,
        dot=dot,
    )


def _plan_row_line(row: PlanRow, colors: dict[str, int]) -> IndexRow:
    """A plan of no budget; its strategy says what kind of plan it is."""
    folder, found = row.folder, row.outcome
    place = "/".join(map(quote, (folder.model, folder.kind, folder.strategy)))
    return IndexRow(
        model=folder.model,
        strategy=folder.strategy,
        budget=row.target,
        budget_bytes=None,
        link="" if row.page is None else f"{place}/{row.page.name}",
        ink=colors[folder.strategy],
        state=found.state,
        word=found.word,
        predicted=row.predicted,
        measured=found.peak if found.measured else None,
        resident=None,
        ratio=found.ratio,
        scattered=found.scattered,
        gap=row.gap,
        words=found.message if found.state == "bad" else row.note,
        spark="",
        dot=None,
        as_planned=found.as_planned,
    )


def format_budget_folder(directory: str) -> str:
    """A budget as it was written, of the name of its folder."""
    return "" if directory == NO_BUDGET else re.sub("pct$", "%", directory)


def _row_note(result: PlanResult) -> str:
    """How good a plan is proven to be, and why it is not validated where it will not be."""
    return "; ".join(filter(None, [optimality_label(result.plan), reason_not_validated(result)]))


def _count_subjects(models: int, chains: int, plans: int) -> list[tuple[str, int]]:
    """How many models, chains and plans there are; chains are left out if there are none, and so
    are models beside chains."""
    counts = {"model": models, "chain": chains, "plan": plans}
    left_out = {"chain" if not chains else "", "model" if chains and not models else ""}
    return [
        (name if count == 1 else f"{name}s", count)
        for name, count in counts.items()
        if name not in left_out
    ]


def _count_outcomes(rows: Sequence[IndexRow]) -> list[tuple[str, int]]:
    """How many rows there are of each outcome, those known in their order."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.word] = counts.get(row.word, 0) + 1
    known = (
        *("fits", "should fit", "over budget", "over device", "infeasible"),
        *("not planned", "failed"),
    )
    others = sorted(counts.keys() - {*known})
    return [(word, counts[word]) for word in (*known[:-2], *others, *known[-2:]) if word in counts]
