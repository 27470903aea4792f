"""What a person sees of the plans of a chain: the figures of each, its sequence, and what devices
and links do over time where a link or several devices take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas.operation_timeline import TimedOperation, read_operation_timeline
from tightfit.schemas.pipeline_pattern import NO_PATTERN, read_pipeline_pattern
from tightfit.schemas.pipeline_plan import PipelinePlan
from tightfit.schemas.plan import Plan
from tightfit.schemas.sequence import read_sequence
from tightfit.stages.report.chain_results import NOT_RUN, ChainPlanResult
from tightfit.stages.report.formatting import (
    format_bytes,
    format_duration,
    format_exact_bytes,
    format_percent,
    format_ratio,
)
from tightfit.stages.report.model_page import Fact, panel_id
from tightfit.stages.report.outcomes import Severity
from tightfit.stages.report.pipeline_page import (
    GanttChart,
    OperationSpan,
    build_gantt_chart,
    planned_spans,
)
from tightfit.stages.report.tradeoff_plot import strategy_colors

BATCHES_SHOWN = 3
"""Batches that are shown of a pipeline, for each of its stages, unless a pattern has more."""


@dataclass(frozen=True)
class PlanFigureTable:
    """A table of a plan, as text; numbers are in all columns but the first `names`."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    names: int


@dataclass(frozen=True)
class ChainPanel:
    """All about one plan; `id` names it on the page. `state` and `word` are its status."""

    id: str
    name: str
    ink: int
    state: Severity
    word: str
    message: str
    facts: list[Fact]
    tables: list[PlanFigureTable]
    picture: GanttChart | None
    periodic: bool
    sequence: list[str]


@dataclass(frozen=True)
class ChainPage:
    """Everything of the page."""

    name: str
    panels: list[ChainPanel]


def chain_page_files(plans: Sequence[Path]) -> list[Path]:
    """The artifacts that the page of these plans shows."""
    names = ("sequence.arrow", "streams.arrow", "pattern.arrow")
    beside = [path.with_name(name) for path in plans for name in names]
    return [*plans, *(path for path in beside if path.exists())]


def build_chain_page(plans: Sequence[Path]) -> ChainPage:
    """The page of the plans of one chain; raises ArtifactError where a file is damaged."""
    results = [ChainPlanResult.of(path.parent) for path in plans]
    colors = strategy_colors(sorted({result.strategy for result in results}))
    panels = [_build_panel(result, colors[result.strategy]) for result in results]
    return ChainPage(results[0].chain if results else "", panels)


def _build_panel(result: ChainPlanResult, ink: int) -> ChainPanel:
    state, word = result.outcome
    plan, place = result.plan, result.place
    facts: list[Fact] = []
    tables: list[PlanFigureTable] = []
    if isinstance(plan, PipelinePlan):
        facts, tables = _pipeline_facts(plan), _pipeline_tables(plan)
    elif plan is not None:
        facts = _plan_facts(plan)
    pattern, streams = place / "pattern.arrow", place / "streams.arrow"
    picture = None
    found = read_pipeline_pattern(pattern) if pattern.exists() else NO_PATTERN
    if found.operations:
        spans = planned_spans(found, max(BATCHES_SHOWN * found.stages, found.batches))
        picture = build_gantt_chart("The pipeline, as planned", spans)
    elif streams.exists() and (steps := read_operation_timeline(streams)):
        picture = build_gantt_chart("The step, as planned", _stream_spans(steps))
    sequence = place / "sequence.arrow"
    operations = list(map(str, read_sequence(sequence))) if sequence.exists() else []
    said = plan.message if plan is not None and not result.error else result.error
    return ChainPanel(
        id=panel_id(result.folder),
        name=" ".join(filter(None, (result.strategy, result.budget))),
        ink=ink,
        state=state,
        word=word,
        message=said if state == "bad" else f"{said} It is {NOT_RUN}.",
        facts=facts,
        tables=tables,
        picture=picture,
        periodic=bool(found.operations),
        sequence=operations,
    )


def _plan_facts(plan: Plan) -> list[Fact]:
    """The figures of a plan within a budget."""
    facts = [("Budget", format_exact_bytes(plan.budget_total or 0))]
    if plan.peak is not None and plan.time is not None:
        facts.append(("Peak", format_exact_bytes(plan.peak)))
        ratio = plan.time / plan.keep_all.time if plan.keep_all.time else 1.0
        facts.append(("Time", f"{format_duration(plan.time)}, {format_ratio(ratio)}"))
        facts.append(("Forwards run again", f"{plan.recomputed:,}"))
    facts += _proof_facts(plan)
    if plan.smallest_budget is not None:
        facts.append(("Smallest budget", format_exact_bytes(plan.smallest_budget)))
    kept = plan.keep_all
    facts.append(("Keeping everything", f"{format_bytes(kept.peak)}, {format_duration(kept.time)}"))
    if (moved := plan.transfers) is not None:
        there, back = format_bytes(moved.offloaded_bytes), format_bytes(moved.prefetched_bytes)
        facts.append(("Sent and brought back", f"{there}, {back}"))
        facts.append(("In the offload target", f"{format_bytes(moved.host_peak)} at most"))
        facts.append(("Waiting for transfers", format_duration(moved.wait_seconds)))
    return [*facts, ("Found by", plan.solver)]


def _proof_facts(plan: Plan | PipelinePlan) -> list[Fact]:
    """What is proven of a plan."""
    facts = []
    if plan.lower_bound is not None:
        facts.append(("Lower bound", format_duration(plan.lower_bound)))
    if plan.optimal_in:
        facts.append(("Optimal among", plan.optimal_in))
    return facts


def _pipeline_facts(plan: PipelinePlan) -> list[Fact]:
    """The figures of a pipeline."""
    facts = [("Machine", plan.machine)]
    if plan.period is not None:
        facts.append(("Period", f"a batch every {format_duration(plan.period)}"))
    facts += _proof_facts(plan)
    if plan.smallest_memory is not None:
        facts.append(("Smallest memory of a device", format_exact_bytes(plan.smallest_memory)))
    if plan.smallest_devices is not None:
        facts.append(("Fewest devices", f"{plan.smallest_devices}"))
    if plan.smallest_period is not None:
        facts.append(("Shortest period", format_duration(plan.smallest_period)))
    facts.append(("Copies of the parameters", f"{plan.weight_copies}"))
    facts.append(("Buffers at cuts", "yes" if plan.buffers else "no"))
    if plan.stage_recompute:
        facts.append(("Stages compute again by", plan.stage_recompute))
    return [*facts, *([("Found by", plan.solver)] if plan.solver else [])]


def _pipeline_tables(plan: PipelinePlan) -> list[PlanFigureTable]:
    """The stages and devices of a pipeline."""
    if not plan.stages:
        return []
    stages = [
        [
            f"{stage.stage}",
            stage.device,
            f"{stage.first} to {stage.last}",
            f"{stage.in_flight}",
            format_duration(stage.recompute_seconds),
        ]
        for stage in plan.stages
    ]
    devices = [
        [
            device.device,
            format_exact_bytes(device.peak),
            format_exact_bytes(device.memory),
            format_percent(device.busy),
        ]
        for device in plan.devices
    ]
    heads = ["Stage", "Device", "Positions", "Batches in flight", "Recomputation a batch"]
    return [
        PlanFigureTable("Stages", heads, stages, 3),
        PlanFigureTable("Devices", ["Device", "Peak", "Memory", "Busy"], devices, 1),
    ]


def _stream_spans(steps: Sequence[TimedOperation]) -> dict[str, list[OperationSpan]]:
    """What computes and what is on its way, by the name of the stream."""
    found: dict[str, list[OperationSpan]] = {}
    for step in steps:
        operation = step.operation
        light = operation.action.startswith("F") or operation.transfers
        span = OperationSpan(step.start, step.end, operation.block, light, str(operation))
        if step.end > step.start:
            found.setdefault(step.stream.rpartition("/")[2], []).append(span)
    return found
