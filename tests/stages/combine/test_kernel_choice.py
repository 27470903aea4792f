"""Of plans of fused and of eager's kernels for the same bytes, the better one is taken."""

from __future__ import annotations

from typing import Any

import pytest

from tightfit.schemas.plan import BaselineBytes, CompetingPlan, Plan, PlanCost
from tightfit.stages.combine.select_plan import choose_kernels, is_better_plan

FIXED = BaselineBytes(1, 1, 0, 1, 1)


def figures(time: float | None, smallest: int, kernels: Any = "fused", budget: str = "50%") -> Plan:
    status: Any = "infeasible" if time is None else "feasible"
    peak = None if time is None else smallest
    return Plan(
        "auto", budget, 9, 9, status, f"a plan of {kernels}", time=time, peak=peak,
        smallest_budget=smallest, keep_all=PlanCost(1.0, 10), baseline=FIXED, solver="none",
        kernels=kernels,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("eager", "fused", "better"),
    [
        ((1.0, 5), (2.0, 5), True),
        ((2.0, 5), (1.0, 5), False),
        ((1.0, 5), (1.0, 5), False),
        ((1.0, 5), (None, 9), True),
        ((None, 5), (1.0, 9), False),
        ((None, 5), (None, 9), True),
        ((None, 9), (None, 5), False),
    ],
)
def test_which_kernels_are_better(
    eager: tuple[float | None, int], fused: tuple[float | None, int], better: bool
) -> None:
    assert is_better_plan(figures(*eager, "eager"), figures(*fused)) is better


def test_a_better_plan_of_eagers_kernels_is_for_the_budget_as_it_was_written() -> None:
    plan = choose_kernels(figures(2.0, 5), figures(1.0, 6, "eager", "9"))
    assert (plan.kernels, plan.budget, plan.time, plan.peak) == ("eager", "50%", 1.0, 6)
    assert plan.competing_plan == CompetingPlan("fused", 2.0, 5, 5, 12)
    assert plan.full_budget_bytes == 12
    assert plan.message.endswith("fused ones would take 2.000 times as long in these bytes")


def test_a_plan_of_fused_kernels_names_that_of_eagers() -> None:
    plan = choose_kernels(figures(1.0, 5), figures(2.0, 6, "eager"))
    assert (plan.kernels, plan.message) == ("fused", "a plan of fused")
    assert plan.competing_plan == CompetingPlan("eager", 2.0, 6, 6, 12)


def test_where_fused_kernels_do_not_fit_the_sentence_says_what_they_need() -> None:
    assert choose_kernels(figures(None, 8), figures(1.0, 6, "eager")).message.endswith(
        "; with eager's kernels, as fused ones need 8 bytes"
    )


def test_without_a_budget_the_kernels_are_those_that_are_asked_for() -> None:
    plan = choose_kernels(figures(2.0, 5, budget="none"), figures(1.0, 5, "eager", "none"))
    assert plan.kernels == "fused"
    assert plan.competing_plan is not None and plan.competing_plan.time == 1.0
