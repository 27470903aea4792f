"""The page of one model: what the artifacts say, put into the shapes that the template shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.plan import GpuMemory, Plan
from tightfit.stages.report.dynamic_sizes import describe_largest, size_facts
from tightfit.stages.report.formatting import (
    describe_loss,
    format_bytes,
    format_count,
    format_duration,
    format_exact_bytes,
    format_ratio,
)
from tightfit.stages.report.load import ModelResults, PlanResult
from tightfit.stages.report.measured_facts import Fact, measured_facts
from tightfit.stages.report.memory_plot import MemoryPlot, plot_memory
from tightfit.stages.report.memory_timeline import StepTimeline, build_timeline
from tightfit.stages.report.model_breakdown import (
    BlockRow,
    ModuleShare,
    PlanColumn,
    RecomputedOps,
    block_rows,
    build_module_tree,
    find_recomputed_ops,
)
from tightfit.stages.report.optimizer_step import activation_budget_bytes, optimizer_step_facts
from tightfit.stages.report.outcomes import (
    BudgetCard,
    PlanOutcome,
    build_cards,
    describe_bound,
    optimality_label,
    plan_outcome,
    reason_not_validated,
)
from tightfit.stages.report.stream_plot import StreamPlot, plot_streams
from tightfit.stages.report.tradeoff_plot import (
    TradeoffPlot,
    plan_name,
    plot_tradeoff,
    strategy_colors,
    strategy_order,
)
from tightfit.stages.simulate.cyclic_schedule import simulate_any


@dataclass(frozen=True)
class PlanPanel:
    """All about one plan; `id` names it on the page."""

    id: str
    name: str
    ink: int
    plan: Plan
    outcome: PlanOutcome
    proof: str
    bound: str
    memory: MemoryPlot | None
    streams: StreamPlot | None
    repeated: list[RecomputedOps]
    facts: list[Fact]


@dataclass(frozen=True)
class BlockMatrix:
    """What each block keeps and repeats, a column for each plan that has a schedule."""

    panels: list[PlanPanel]
    rows: list[BlockRow]


@dataclass(frozen=True)
class ModelPage:
    """A model's page.

    `subtitle` says where it was planned, `sizes` which sizes calls have. `ids` names the panels,
    `first` is the panel that is open at first, and `outcomes` has the statuses by the folder of
    their plan. `failures` are points that have no plan, with the message of what went wrong;
    `notes` say what is missing.
    """

    title: str
    subtitle: str
    error: str
    failures: list[Fact]
    cards: list[BudgetCard]
    curve: TradeoffPlot | None
    sizes: str
    panels: list[PlanPanel]
    ids: dict[str, str]
    outcomes: dict[str, PlanOutcome]
    first: str
    matrix: BlockMatrix | None
    tree: ModuleShare | None
    provenance: list[Fact]
    digests: list[Fact]
    notes: list[str]


def build_model_page(results: ModelResults) -> ModelPage:
    """The page of a model, with whatever its artifacts allow."""
    strategies = strategy_order(results)
    plans = sorted(results.plans, key=lambda result: _plan_order(result, strategies))
    lines = _plan_timelines(results, plans)
    ids = {result.folder: panel_id(result.folder) for result in plans}
    colors = strategy_colors(strategies)
    keep_all = _keep_all_timeline(plans, lines)
    panels = [
        _build_panel(
            results, result, ids[result.folder], colors, lines.get(result.folder), keep_all
        )
        for result in plans
    ]
    found = build_cards(plans, lines)
    shown = [card.best for card in found if card.outcome.fits][-1:] or plans[:1]
    graph, costs = results.graph, results.costs
    return ModelPage(
        title=results.graph.model if results.graph else results.name,
        subtitle=_subtitle(results),
        error=results.error,
        failures=sorted(item for item in results.failures.items() if item[1] != results.error),
        cards=found,
        curve=plot_tradeoff(results, ids),
        sizes=describe_largest(graph.dynamic) if graph else "",
        panels=panels,
        ids=ids,
        outcomes={result.folder: plan_outcome(result) for result in plans},
        first=ids[shown[0].folder] if shown else "",
        matrix=_build_matrix(results, plans, panels, lines),
        tree=build_module_tree(graph, costs) if graph and costs else None,
        provenance=_provenance(results),
        digests=sorted(results.digests.items()),
        notes=_notes(results),
    )


def panel_id(folder: str) -> str:
    """The name of a plan's panel on the page: "plan-rockmate-50pct"."""
    return "plan-" + re.sub(r"[^A-Za-z0-9._]+", "-", folder)


def _plan_order(result: PlanResult, strategies: Sequence[str]) -> tuple[int, int, str]:
    return strategies.index(result.plan.strategy), -(result.plan.budget_bytes or 0), result.folder


def _plan_timelines(results: ModelResults, plans: Sequence[PlanResult]) -> dict[str, StepTimeline]:
    lines = {}
    for plan in plans:
        graph = results.graph_of(plan)
        if graph is not None and plan.steps:
            lines[plan.folder] = build_timeline(graph, plan.steps, updates=plan.updates)
    return lines


def _keep_all_timeline(
    plans: Sequence[PlanResult], lines: dict[str, StepTimeline]
) -> StepTimeline | None:
    """The memory line of the keep-all step, where the run has it."""
    found = [lines.get(plan.folder) for plan in plans if plan.plan.strategy == "keep_all"]
    return next((line for line in found if line is not None), None)


def _build_panel(
    results: ModelResults,
    result: PlanResult,
    name: str,
    colors: dict[str, int],
    line: StepTimeline | None,
    keep_all: StepTimeline | None,
) -> PlanPanel:
    graph, plan = results.graph_of(result), result.plan
    memory = None
    if graph is not None and line is not None:
        own = line is keep_all or results.is_eager_fallback(result)
        other = None if own else keep_all
        memory = plot_memory(graph, line, activation_budget_bytes(result), other, result.line)
    return PlanPanel(
        id=name,
        name=plan_name(plan),
        ink=colors[plan.strategy],
        plan=plan,
        outcome=plan_outcome(result),
        proof=optimality_label(plan),
        bound=describe_bound(result),
        memory=memory,
        streams=_plan_streams(results, result),
        repeated=find_recomputed_ops(graph, line) if graph is not None and line is not None else [],
        facts=[
            *_plan_facts(result),
            *optimizer_step_facts(result, graph),
            *measured_facts(result.measurement, result.fused),
            *size_facts(result),
        ],
    )


def _plan_streams(results: ModelResults, result: PlanResult) -> StreamPlot | None:
    """The streams of a plan that has several. States that pass are seen where costs are there."""
    graph, costs, steps = results.graph_of(result), results.costs_of(result), result.steps
    if steps is None or graph is None:
        return None
    if result.updates is None or costs is None:
        found = result.measurement
        took = None if found is None else found.measured_time
        return plot_streams(steps, ran=result.line or (), took=took or 0.0)
    played, _ = simulate_any(graph, costs, steps, result.link, result.updates)
    stays, other = result.updates.host_bytes(graph), result.link.other if result.link else ""
    return plot_streams(steps, played.passing, stays, other=other if stays else "")


def _plan_facts(result: PlanResult) -> list[Fact]:
    plan, facts = result.plan, []
    if plan.budget_total is not None and plan.budget_bytes is not None:
        step = f"{format_bytes(max(plan.budget_bytes, 0))} of it for the step itself"
        if plan.joint_samples is not None:
            step += f", shared by {plan.joint_samples} samples"
        facts.append(("Budget", f"{format_bytes(plan.budget_total)} in all, {step}"))
    if plan.time is not None and plan.peak is not None:
        ratio, more = format_ratio(result.relative or 1.0), result.slower_than_predicted
        ratio += "" if more is None else f", measured {format_ratio(more)}"
        facts.append(
            (
                "Predicted",
                f"{format_exact_bytes(plan.peak)} beyond parameters and inputs, "
                f"{format_duration(plan.time)} ({ratio})",
            )
        )
    if plan.transfers is not None and plan.feasible:
        moved = plan.transfers
        left = format_bytes(moved.offloaded_bytes)
        there = f"{format_exact_bytes(moved.host_peak)} at most, {left} leave in a step"
        facts.append(
            ("In the offload target", f"{there}, waited for {format_duration(moved.wait_seconds)}")
        )
    if plan.gpu is not None and plan.feasible:
        facts += _gpu_facts(plan.gpu)
    if plan.before_local_search is not None and plan.time is not None:
        before = plan.before_local_search
        cost = f"{format_exact_bytes(before.peak)}, {format_duration(before.time)}"
        facts.append(("Before local search", cost))
    keep_all = plan.keep_all
    facts.append(
        (
            "Keeping everything",
            f"{format_exact_bytes(keep_all.peak)}, {format_duration(keep_all.time)}",
        )
    )
    if plan.feasible:
        repeated = f"{format_count(plan.recomputed, 'op')}, {format_duration(plan.recomputed_time)}"
        facts.append(("Run again", repeated if plan.recomputed else "nothing"))
    if plan.lower_bound is not None:
        facts.append(("Least possible time", format_duration(plan.lower_bound)))
    if plan.optimal_in:
        facts.append(("Optimal among", plan.optimal_in))
    if plan.smallest_budget is not None:
        facts.append(
            ("Smallest budget known to work", f"{format_bytes(plan.smallest_budget)} in all")
        )
    if plan.solver != "none":
        facts.append(("Derived by", plan.solver))
    return [*facts, *_kernel_facts(result)]


def _kernel_facts(result: PlanResult) -> list[Fact]:
    """Which kernels a plan runs, and what a plan of the other ones would take."""
    plan, facts = result.plan, []
    if plan.kernels == "fused" and plan.groups is not None:
        kernels = format_count(plan.compiled or 0, "kernel")
        run = f"fused, {format_count(plan.groups, 'group')} by {kernels}"
        facts.append(("Kernels", run))
    rival = plan.competing_plan
    if rival is not None:
        facts += [] if facts else [("Kernels", f"{plan.kernels}'s")]
        told = "need more bytes"
        if rival.time is not None and rival.peak is not None:
            told = f"{format_exact_bytes(rival.peak)}, {format_duration(rival.time)}"
        elif rival.smallest_budget is not None:
            told = f"need {format_bytes(rival.smallest_budget)} in all"
        facts.append((f"Predicted with {rival.kernels} kernels", told))
    return facts


def _gpu_facts(gpu: GpuMemory) -> list[Fact]:
    """What a plan takes of a GPU, with all that is there before the step."""
    kept = (
        f", {format_bytes(gpu.workspaces)} of them libraries' workspaces" if gpu.workspaces else ""
    )
    ahead = (
        f", {format_bytes(gpu.arena)} of it at once, ahead of the first step" if gpu.arena else ""
    )
    return [
        ("Requested of the GPU in all", f"{format_exact_bytes(gpu.requested)}{kept}"),
        ("Allocated in blocks", format_exact_bytes(gpu.allocated)),
        ("Reserved, without CUDA's context", f"{format_exact_bytes(gpu.reserved)}{ahead}"),
        (
            "Reserved on new inputs each step, which the budget bounds",
            format_exact_bytes(gpu.steady_reserved),
        ),
    ]


def _build_matrix(
    results: ModelResults,
    plans: Sequence[PlanResult],
    panels: Sequence[PlanPanel],
    lines: dict[str, StepTimeline],
) -> BlockMatrix | None:
    chosen = [
        pair
        for pair in zip(plans, panels, strict=True)
        if pair[0].folder in lines and not results.is_eager_fallback(pair[0])
    ]
    if results.graph is None or results.blocks is None or not chosen:
        return None
    columns = [PlanColumn(lines[plan.folder], plan.sequence) for plan, _ in chosen]
    rows = block_rows(results.graph, results.blocks, results.options, columns)
    return BlockMatrix([panel for _, panel in chosen], rows)


def _subtitle(results: ModelResults) -> str:
    graph, costs = results.graph, results.costs
    parts = []
    if costs is not None:
        device = costs.device
        how = "described" if device.described else format_count(device.threads, "thread")
        parts.append(f"{device.name} ({device.type}, {how})")
    elif graph is not None:
        parts.append(graph.device)
    if graph is not None:
        parts.append(f"PyTorch {graph.torch}")
        parts.append(f"{format_count(len(graph.ops), 'op')} a step")
    return " · ".join(parts)


def _provenance(results: ModelResults) -> list[Fact]:
    graph, costs = results.graph, results.costs
    facts: list[Fact] = []
    if graph is not None:
        facts.append(("PyTorch that traced it", graph.torch))
        facts.append(("Loss", describe_loss(graph)))
    if costs is not None:
        device = costs.device
        facts.append(("Device", f"{device.type}: {device.name}"))
        if not device.described:
            facts += [("Build", device.build), ("Threads", str(device.threads))]
        facts.append(
            ("Costs are", f"by roofline of {device.name}" if device.described else device.source)
        )
    solvers = sorted({plan.plan.solver for plan in results.plans if plan.plan.solver != "none"})
    if solvers:
        facts.append(("Solvers", ", ".join(solvers)))
    return facts


def _notes(results: ModelResults) -> list[str]:
    notes = []
    if results.error and results.plans:
        notes.append("The plans on this page are from before the failure.")
    missing = [
        (results.graph is None, "There is no traced graph, so nothing is shown by op or module."),
        (results.costs is None, "There is no profile, so no times are shown by module."),
        (
            results.blocks is None and not any(plan.updates for plan in results.plans),
            "There are no blocks, so what they keep is not shown.",
        ),
        (not results.plans, "No plan was chosen yet."),
    ]
    notes += [message for absent, message in missing if absent]
    unmeasured = [
        plan_name(result.plan)
        for result in results.plans
        if result.plan.feasible and result.measurement is None and not result.error
    ]
    described = next((plan for plan in results.plans if reason_not_validated(plan)), None)
    if described is not None:
        notes.append(
            f"The plans are {reason_not_validated(described)}. Times follow from its description."
        )
    elif unmeasured:
        notes.append(f"Not measured yet: {', '.join(unmeasured)}.")
    return notes
