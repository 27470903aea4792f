"""The verdict in plain words: one card a budget, one row a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tightfit.schemas.budget import NO_BUDGET
from tightfit.schemas.measurement import FAILED, Measurement
from tightfit.schemas.plan import Plan
from tightfit.schemas.strategies import baselines
from tightfit.stages.report.load import PlanResult
from tightfit.stages.report.timeline import OWNERS, Timeline
from tightfit.stages.report.words import duration, percent, ratio, size

Severity = Literal["good", "warning", "bad"]


@dataclass(frozen=True)
class Part:
    """One part of the memory under a budget, `share` in percent of the bar."""

    key: str
    name: str
    bytes: int
    share: float


@dataclass(frozen=True)
class Outcome:
    """What became of one plan. `peak` and `ratio` are measured where `measured`, else predicted;
    None where there is no plan. `fits` says whether the budget is met, `scattered` whether the
    measured runs differ too much for `ratio` to be more than a guess."""

    state: Severity
    word: str
    sentence: str
    peak: int | None
    ratio: float | None
    measured: bool
    fits: bool
    scattered: bool = False


@dataclass(frozen=True)
class Card:
    """One budget: the outcome of its best plan, and the memory of that plan at its peak.

    `step` is what the budget leaves to the step itself and `total` what it allows in all; the bar
    of `parts` is `whole` bytes long. `others` are the further plans that compete: those for the
    same budget and the baselines."""

    budget: str
    step: int
    total: int | None
    outcome: Outcome
    best: PlanResult
    parts: list[Part]
    whole: int
    others: list[PlanResult]


def outcome(result: PlanResult) -> Outcome:
    """The verdict of one plan as a sentence."""
    found = _outcome(result)
    return replace(found, scattered=found.measured and _scattered(result.measurement))


def _scattered(found: Measurement | None) -> bool:
    return found is not None and found.time_ratio is not None and found.scattered


def _outcome(result: PlanResult) -> Outcome:
    plan, found = result.plan, result.measurement
    peak: int | None = plan.peak
    relative = result.relative
    if result.error:
        sentence = f"Failed: {result.error}"
        return Outcome("bad", "failed", sentence, peak, relative, False, False)
    if not plan.feasible:
        return Outcome("bad", plan.verdict, _without_plan(result), None, None, False, False)
    measured = found is not None and found.measured_peak is not None
    if found is not None and found.measured_peak is not None:
        peak, relative = found.measured_peak, found.time_ratio or relative
    fits = peak is not None and _fits(plan, found, peak)
    figures = _figures(peak or 0, relative, measured, measured and _scattered(found))
    if found is not None and found.verdict == FAILED:
        sentence = f"Failed: {found.sentence or figures}"
        return Outcome("bad", "failed", sentence, peak, relative, measured, fits)
    if not measured and (beyond := _beyond_device(result)):
        sentence = f"Exceeds the device: {beyond}; {unvalidated(result)}."
        return Outcome("bad", "over device", sentence, peak, relative, False, fits)
    if plan.budget == NO_BUDGET:
        state: Severity = "good" if measured else "warning"
        sentence = f"{figures}{_why_unvalidated(result)}.{_unequal(result)}"
        return Outcome(state, "baseline", sentence, peak, relative, measured, True)
    asked = f"{plan.budget} ({size(plan.budget_bytes or 0)} for the step)"
    if not fits:
        sentence = f"Misses {asked}: {figures}."
        return Outcome("bad", "over budget", sentence, peak, relative, measured, False)
    if not measured:
        why = _why_unvalidated(result) or ", not measured yet"
        sentence = f"Should fit {asked}: {figures}{why}."
        return Outcome("warning", "should fit", sentence, peak, relative, False, True)
    sentence = f"Fits {asked}: {figures}.{_unequal(result)}"
    return Outcome("good", "fits", sentence, peak, relative, True, True)


def _fits(plan: Plan, found: Measurement | None, peak: int) -> bool:
    """Whether a step keeps the budget: with its peak, and on a GPU with what is reserved."""
    if plan.budget_bytes is None or plan.budget_total is None:
        return True
    reserved = 0 if plan.gpu is None else plan.gpu.renewed
    if found is not None and found.reserved_peak is not None:
        reserved = found.reserved_peak
    return peak <= plan.budget_bytes and reserved <= plan.budget_total


def unvalidated(result: PlanResult) -> str:
    """Why a plan is not validated and will not be, "" where it is measured or waits for it."""
    if result.described is None or result.measurement is not None:
        return ""
    return f"not validated: planned for {result.described.name}, which is not here"


def _why_unvalidated(result: PlanResult) -> str:
    why = unvalidated(result)
    return f", {why}" if why else ""


def _beyond_device(result: PlanResult) -> str:
    """How a plan exceeds the memory of a described device, "" where it does not."""
    plan, device = result.plan, result.described
    total = (plan.peak or 0) + plan.fixed.there_before
    if plan.gpu is not None:
        total = plan.gpu.renewed
    if device is None or not device.memory or total <= device.memory:
        return ""
    needed, there = _apart(total, device.memory)
    return f"{needed} in all predicted, where {device.name} has {there}"


def _unequal(result: PlanResult) -> str:
    """Why a plan that did not fail is not equal bit for bit, or was not compared, or how far its
    fused kernels are from eager's, after a space; "" where it is equal."""
    found = result.measurement
    equal = found is None or (found.bits_equal and not result.fused)
    return "" if found is None or equal else f" {found.sentence}"


def _figures(peak: int, relative: float | None, measured: bool, scattered: bool) -> str:
    how = "measured" if measured else "predicted"
    step = "" if relative is None else f", {ratio(relative, scattered)} the unplanned step"
    return f"{size(peak)} {how}{step}"


def _without_plan(result: PlanResult) -> str:
    plan = result.plan
    asked, known = _apart(plan.budget_total or 0, plan.smallest_budget or 0)
    rest = "no plan is known"
    if plan.smallest_budget:
        rest = f"the smallest budget known to work is {known}{_allocated(plan)}"
    return f"Does not fit {plan.budget} ({asked} in all): {rest}."


def _allocated(plan: Plan) -> str:
    """Why the bytes of the smallest budget are more than those of its plan on a GPU, as a clause;
    "" where they are not."""
    if plan.gpu is None or plan.gpu.renewed <= plan.gpu.requested:
        return ""
    reserved, requested = _apart(plan.gpu.renewed, plan.gpu.requested)
    return f": PyTorch's allocator reserves {reserved} for the {requested} that are requested of it"


def _apart(one: int, other: int) -> tuple[str, str]:
    """Two sizes in words, to the byte where rounded ones would look the same."""
    rounded = size(one), size(other)
    return rounded if rounded[0] != rounded[1] else (f"{one:,} bytes", f"{other:,} bytes")


def proof(plan: Plan) -> str:
    """How good a plan is proven to be, in two words; "" where there is no plan."""
    if not plan.feasible:
        return ""
    if plan.verdict == "optimal":
        return "optimal"
    return f"within {percent(plan.gap)} of the bound" if plan.gap is not None else plan.verdict


def bound_words(result: PlanResult) -> str:
    """How good the plan is proven to be, in one sentence; "" where nothing is known."""
    plan = result.plan
    if not plan.feasible:
        return ""
    if plan.verdict == "optimal" and plan.optimal_in:
        return f"Nothing is faster within this budget among {plan.optimal_in}."
    if plan.lower_bound is None:
        return "No bound is known for this plan."
    if plan.time is None or plan.time <= plan.lower_bound:
        return "No plan of this step can be predicted faster."
    more = percent(plan.time / plan.lower_bound - 1) if plan.lower_bound > 0 else "much"
    return (
        f"No plan can be predicted below {duration(plan.lower_bound)}; this one takes "
        f"{duration(plan.time)}, {more} more."
    )


def best_of(results: Sequence[PlanResult]) -> PlanResult:
    """The plan to use among those for one budget: it fits and is fastest; a plan that was made
    comes before a baseline that happens to fit, a measured one before one that is not. Where no
    plan fits, the one that needs the least."""

    def rank(result: PlanResult) -> tuple[int, int, float]:
        found = outcome(result)
        if not result.plan.feasible:
            return 3, 0, float(result.plan.smallest_budget or 0)
        order = {"good": 0, "warning": 1, "bad": 2}[found.state]
        baseline = result.plan.strategy in baselines()
        return order, baseline, found.ratio if found.ratio is not None else float("inf")

    return min(results, key=rank)


def cards(results: Sequence[PlanResult], lines: dict[str, Timeline]) -> list[Card]:
    """A card for each budget, the largest budget first. `lines` are memory lines by folder."""
    groups: dict[tuple[int, str], list[PlanResult]] = {}
    for result in results:
        if result.plan.budget_bytes is not None:
            key = (result.plan.budget_bytes, result.plan.budget)
            groups.setdefault(key, []).append(result)
    without = [result for result in results if result.plan.budget_bytes is None]
    found = []
    for (step, budget), members in sorted(groups.items(), key=lambda item: (-item[0][0], item[0])):
        best = best_of(members)
        others = [result for result in [*members, *without] if result is not best]
        parts, whole = breakdown(best, lines.get(best.folder))
        found.append(
            Card(budget, step, best.plan.budget_total, outcome(best), best, parts, whole, others)
        )
    return found


def breakdown(result: PlanResult, line: Timeline | None) -> tuple[list[Part], int]:
    """The memory at the plan's peak by what it is for, with what the budget leaves free, and the
    length of the bar in bytes: the budget, or the peak where that is more."""
    plan = result.plan
    if plan.peak is None:
        return [], 0
    fixed = plan.fixed
    rows = [("parameters", "parameters and buffers", fixed.parameters + fixed.buffers)]
    rows.append(("inputs", "inputs", fixed.inputs))
    if line is not None:
        top = max(line.segments, key=lambda segment: segment.total)
        owned = dict(zip(OWNERS, top.bytes, strict=True))
        rows.append(("held", "outputs and their gradients", owned["held"]))
        rows.append(("gradients", "gradients finished by then", owned["gradients"]))
        if owned["brought"]:
            rows.append(("brought", "parameters from the other memory", owned["brought"]))
        rows.append(("kept", "activations kept", owned["kept"]))
        rows.append(("working", "made and used up", owned["working"]))
    else:
        rows.append(("working", "the step's own peak", plan.peak))
    used = sum(bytes_ for _, _, bytes_ in rows)
    allowed = plan.budget_total or 0
    whole = max(used, allowed, 1)
    if allowed > used:
        rows.append(("free", "left free", allowed - used))
    return [Part(key, name, size_, 100 * size_ / whole) for key, name, size_ in rows], whole
