"""Plans of fused and of eager's kernels for the same bytes: which of the two is taken."""

from __future__ import annotations

from dataclasses import replace

from tightfit.schemas.budget import NO_BUDGET
from tightfit.schemas.plan import Plan, Rival


def is_better(other: Plan, plan: Plan) -> bool:
    """Whether a plan of eager's kernels takes less time than one of fused ones, or fits alone; of
    two that do not fit, whether it is the one that would in fewer bytes."""
    if other.time is not None and plan.time is not None:
        return other.time < plan.time
    if other.feasible or plan.feasible or None in (other.smallest_budget, plan.smallest_budget):
        return other.feasible
    return other.smallest_budget < plan.smallest_budget  # type: ignore[operator]


def taken(plan: Plan, other: Plan) -> Plan:
    """Of a plan of fused kernels and the one of eager's for the same bytes, the one that is taken:
    for the budget that the first was asked for, and with the other one as its rival. Without a
    budget that is the plan of fused kernels."""
    if plan.budget == NO_BUDGET or not is_better(other, plan):
        return replace(plan, rival=rival_of(other))
    said = other.sentence + _why(plan, other)
    return replace(other, budget=plan.budget, sentence=said, rival=rival_of(plan))


def rival_of(plan: Plan) -> Rival:
    """What the other plan says of this one."""
    return Rival(
        kernels=plan.kernels or "eager",
        time=plan.time,
        peak=plan.peak,
        smallest_budget=plan.smallest_budget,
        keep_all_total=plan.keep_all_total,
    )


def _why(plan: Plan, other: Plan) -> str:
    """Why the plan is one of eager's kernels, for people."""
    if plan.time is None or other.time is None:
        return f"; with eager's kernels, as fused ones need {plan.smallest_budget:,} bytes"
    share = f"{plan.time / other.time:.3f}"
    return f"; with eager's kernels, as fused ones would take {share} times as long in these bytes"
