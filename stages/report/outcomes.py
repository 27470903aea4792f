"""The status in plain words: one card a budget, one row a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tightfit.schemas.measurement import FAILED_STATUS, Measurement
from tightfit.schemas.optimizer_plan import OPTIMIZER_OFFLOAD
from tightfit.schemas.plan import Plan
from tightfit.stages.report.formatting import (
    format_bytes,
    format_duration,
    format_percent,
    format_ratio,
)
from tightfit.stages.report.load import PlanResult
from tightfit.stages.report.memory_timeline import MEMORY_OWNERS, StepTimeline
from tightfit.stages.report.optimizer_step import optimizer_buffer_bytes
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET
from tightfit.util.strategies import baseline_names

Severity = Literal["good", "warning", "bad"]
DAMAGED = "damaged"
"""The word for a plan of which a file cannot be read."""


@dataclass(frozen=True)
class MemoryShare:
    """One part of the memory under a budget, `share` in percent of the bar."""

    key: str
    name: str
    bytes: int
    share: float


@dataclass(frozen=True)
class PlanOutcome:
    """What became of one plan. `peak` and `ratio` are measured where `measured`, else predicted;
    None where there is no plan. `fits` says whether the budget is met, `scattered` whether the
    measured runs differ too much for `ratio` to be more than a guess. `as_planned` says that it is
    predicted though the plan was measured, since the ranks of a pipeline shared processors."""

    state: Severity
    word: str
    message: str
    peak: int | None
    ratio: float | None
    measured: bool
    fits: bool
    scattered: bool = False
    as_planned: bool = False


@dataclass(frozen=True)
class BudgetCard:
    """One budget: the outcome of its best plan, and the memory of that plan at its peak.

    `step` is what the budget leaves to the step itself and `total` what it allows in all; the bar
    of `parts` is `whole` bytes long. `others` are the further plans that compete: those for the
    same budget and the baselines."""

    budget: str
    step: int
    total: int | None
    outcome: PlanOutcome
    best: PlanResult
    parts: list[MemoryShare]
    whole: int
    others: list[PlanResult]


def plan_outcome(result: PlanResult) -> PlanOutcome:
    """The status of one plan with its message."""
    found = _classify_plan(result)
    return replace(found, scattered=found.measured and _is_scattered(result.measurement))


def _is_scattered(found: Measurement | None) -> bool:
    return found is not None and found.time_ratio is not None and found.scattered


def _classify_plan(result: PlanResult) -> PlanOutcome:
    plan, found = result.plan, result.measurement
    peak: int | None = plan.peak
    relative = result.relative
    if result.error:
        message = f"Failed: {result.error}"
        return PlanOutcome("bad", "failed", message, peak, relative, False, False)
    if not plan.feasible:
        return PlanOutcome(
            "bad", plan.status, _describe_infeasible(result), None, None, False, False
        )
    measured = found is not None and found.measured_peak is not None
    if found is not None and found.measured_peak is not None:
        peak, relative = found.measured_peak, found.time_ratio or relative
    fits = peak is not None and _fits_budget(plan, found, peak)
    figures = _describe_figures(peak or 0, relative, measured, measured and _is_scattered(found))
    if result.slower_than_predicted is not None and result.relative is not None:
        figures += f", where {format_ratio(result.relative)} was predicted"
    if found is not None and found.status == FAILED_STATUS:
        message = f"Failed: {found.message or figures}"
        return PlanOutcome("bad", "failed", message, peak, relative, measured, fits)
    if not measured and (beyond := _describe_device_overrun(result)):
        message = f"Exceeds the device: {beyond}; {reason_not_validated(result)}."
        return PlanOutcome("bad", "over device", message, peak, relative, False, fits)
    if plan.budget == NO_BUDGET:
        state: Severity = "good" if measured else "warning"
        message = f"{figures}{_not_validated_clause(result)}.{_describe_inequality(result)}"
        return PlanOutcome(state, "baseline", message, peak, relative, measured, True)
    asked = f"{plan.budget_label} ({format_bytes(plan.budget_bytes or 0)} for the step)"
    if not fits:
        message = f"Misses {asked}: {figures}."
        return PlanOutcome("bad", "over budget", message, peak, relative, measured, False)
    if not measured:
        why = _not_validated_clause(result) or ", not measured yet"
        message = f"Should fit {asked}: {figures}{why}."
        return PlanOutcome("warning", "should fit", message, peak, relative, False, True)
    message = f"Fits {asked}: {figures}.{_describe_inequality(result)}"
    return PlanOutcome("good", "fits", message, peak, relative, True, True)


def _fits_budget(plan: Plan, found: Measurement | None, peak: int) -> bool:
    """Whether a step keeps the budget: with its peak, and on a GPU with what is reserved."""
    if plan.budget_bytes is None or plan.budget_total is None:
        return True
    reserved = 0 if plan.gpu is None else plan.gpu.steady_reserved
    if found is not None and found.reserved_peak is not None:
        reserved = found.reserved_peak
    return peak <= plan.budget_bytes and reserved <= plan.budget_total


def reason_not_validated(result: PlanResult) -> str:
    """Why a plan is not validated and will not be, "" where it is measured or waits for it."""
    if result.described is None or result.measurement is not None:
        return ""
    return f"not validated: planned for {result.described.name}, which is not here"


def _not_validated_clause(result: PlanResult) -> str:
    why = reason_not_validated(result)
    return f", {why}" if why else ""


def _describe_device_overrun(result: PlanResult) -> str:
    """How a plan exceeds the memory of a described device, "" where it does not."""
    plan, device = result.plan, result.described
    total = (plan.peak or 0) + plan.baseline.bytes_before_step
    if plan.gpu is not None:
        total = plan.gpu.steady_reserved
    if device is None or not device.memory or total <= device.memory:
        return ""
    needed, there = _distinct_sizes(total, device.memory)
    return f"{needed} in all predicted, where {device.name} has {there}"


def _describe_inequality(result: PlanResult) -> str:
    """Why a plan that did not fail is not equal bit for bit, or was not compared, or how far its
    fused kernels are from eager's, after a space; "" where it is equal."""
    found = result.measurement
    equal = found is None or (found.bits_equal and not result.fused)
    return "" if found is None or equal else f" {found.message}"


def _describe_figures(peak: int, relative: float | None, measured: bool, scattered: bool) -> str:
    how = "measured" if measured else "predicted"
    step = "" if relative is None else f", {format_ratio(relative, scattered)} the eager step"
    return f"{format_bytes(peak)} {how}{step}"


def _describe_infeasible(result: PlanResult) -> str:
    plan = result.plan
    asked, known = (f"{size or 0:,} bytes" for size in (plan.budget_total, plan.smallest_budget))
    rest = "no plan is known"
    within = "" if plan.budget == MIN_BUDGET else f" {plan.budget_label} ({asked} in all)"
    if plan.strategy == OPTIMIZER_OFFLOAD and not plan.smallest_budget:
        rest = plan.message.removeprefix("infeasible: ")
    elif plan.smallest_budget:
        rest = f"the smallest budget known to work is {known}{_describe_reserved(plan)}"
    return f"Does not fit{within}: {rest}."


def _describe_reserved(plan: Plan) -> str:
    """Why the bytes of the smallest budget are more than those of its plan on a GPU, as a clause;
    "" where they are not."""
    if plan.gpu is None or plan.gpu.steady_reserved <= plan.gpu.requested:
        return ""
    reserved, requested = _distinct_sizes(plan.gpu.steady_reserved, plan.gpu.requested)
    return f": PyTorch's allocator reserves {reserved} for the {requested} that are requested of it"


def _distinct_sizes(one: int, other: int) -> tuple[str, str]:
    """Two sizes in words, to the byte where rounded ones would look the same."""
    rounded = format_bytes(one), format_bytes(other)
    return rounded if rounded[0] != rounded[1] else (f"{one:,} bytes", f"{other:,} bytes")


def optimality_label(plan: Plan) -> str:
    """How good a plan is proven to be, in two words; "" where there is no plan."""
    if not plan.feasible:
        return ""
    if plan.status == "optimal":
        return "optimal"
    return plan.status if plan.gap is None else f"at most {format_percent(plan.gap)} to gain"


def describe_bound(result: PlanResult) -> str:
    """How good the plan is proven to be, in one sentence; "" where nothing is known."""
    plan = result.plan
    if not plan.feasible:
        return ""
    if plan.status == "optimal" and plan.optimal_in:
        return f"Nothing is faster within this budget among {plan.optimal_in}."
    if plan.lower_bound is None:
        return "No bound is known for this plan."
    if plan.time is None or plan.time <= plan.lower_bound:
        return "No plan of this step can be predicted faster."
    gain = format_percent(1 - plan.lower_bound / plan.time)
    return (
        f"No plan can be predicted below {format_duration(plan.lower_bound)}; this one takes "
        f"{format_duration(plan.time)}, of which at most {gain} could be gained."
    )


def best_plan(results: Sequence[PlanResult]) -> PlanResult:
    """The plan to use among those for one budget: it fits and is fastest; a plan that was made
    comes before a baseline that happens to fit, a measured one before one that is not. Where no
    plan fits, the one that needs the least."""

    def rank(result: PlanResult) -> tuple[int, int, float]:
        found = plan_outcome(result)
        if not result.plan.feasible:
            return 3, 0, float(result.plan.smallest_budget or 0)
        order = {"good": 0, "warning": 1, "bad": 2}[found.state]
        baseline = result.plan.strategy in baseline_names()
        return order, baseline, found.ratio if found.ratio is not None else float("inf")

    return min(results, key=rank)


def build_cards(results: Sequence[PlanResult], lines: dict[str, StepTimeline]) -> list[BudgetCard]:
    """A card for each budget, the largest budget first. `lines` are memory lines by folder."""
    groups: dict[tuple[int, str], list[PlanResult]] = {}
    for result in results:
        if result.plan.budget_bytes is not None:
            key = (result.plan.budget_bytes, result.plan.budget_label)
            groups.setdefault(key, []).append(result)
    without = [result for result in results if result.plan.budget_bytes is None]
    found = []
    for (step, budget), members in sorted(groups.items(), key=lambda item: (-item[0][0], item[0])):
        best = best_plan(members)
        others = [result for result in [*members, *without] if result is not best]
        parts, whole = peak_breakdown(best, lines.get(best.folder))
        found.append(
            BudgetCard(
                budget, step, best.plan.budget_total, plan_outcome(best), best, parts, whole, others
            )
        )
    return found


def peak_breakdown(result: PlanResult, line: StepTimeline | None) -> tuple[list[MemoryShare], int]:
    """The memory at the plan's peak by what it is for, with what the budget leaves free, and the
    length of the bar in bytes: the budget, or the peak where that is more."""
    plan = result.plan
    if plan.peak is None:
        return [], 0
    fixed = plan.baseline
    rows = [("parameters", "parameters and buffers", fixed.parameters + fixed.buffers)]
    rows.append(("inputs", "inputs", fixed.inputs))
    if buffers := optimizer_buffer_bytes(result):
        rows.append(("passing", "buffers of the optimizer's states and updates", buffers))
    if line is not None:
        top = max(line.segments, key=lambda segment: segment.total)
        owned = dict(zip(MEMORY_OWNERS, top.bytes, strict=True))
        rows.append(("held", "outputs and their gradients", owned["held"]))
        rows.append(("gradients", "gradients finished by then", owned["gradients"]))
        if owned["brought"]:
            rows.append(("brought", "parameters from the offload target", owned["brought"]))
        rows.append(("kept", "activations kept", owned["kept"]))
        rows.append(("working", "made and used up", owned["working"]))
    else:
        rows.append(("working", "the step's own peak", plan.peak))
    used = sum(bytes_ for _, _, bytes_ in rows)
    allowed = plan.budget_total or 0
    whole = max(used, allowed, 1)
    if allowed > used:
        name = "needed at other times of the step" if plan.budget == MIN_BUDGET else "left free"
        rows.append(("free", name, allowed - used))
    return [MemoryShare(key, name, size_, 100 * size_ / whole) for key, name, size_ in rows], whole
