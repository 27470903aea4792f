"""The statuses in words, and which plan a budget's card is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stages.report.cases import (
    keep_all,
    measurement_of,
    plan_of,
    played,
    run_again,
    small_costs,
    small_graph,
)
from tightfit.schemas.costs import ProfileDevice
from tightfit.schemas.plan import GpuMemory, Plan
from tightfit.stages.report.load import PlanResult
from tightfit.stages.report.memory_timeline import build_timeline
from tightfit.stages.report.model_page import _plan_facts
from tightfit.stages.report.outcomes import (
    best_plan,
    build_cards,
    describe_bound,
    optimality_label,
    peak_breakdown,
    plan_outcome,
    reason_not_validated,
)
from tightfit.stages.report.tradeoff_plot import plot_points

GRAPH = small_graph()
COSTS = small_costs(GRAPH)
AGAIN = played(GRAPH, COSTS, run_again(GRAPH))
EVERYTHING = played(GRAPH, COSTS, keep_all(GRAPH))
PLAN = plan_of(GRAPH, COSTS, "rockmate", "50%", AGAIN.peak, AGAIN)


def result(plan: Plan, measured: bool = True, error: str = "", **changes: object) -> PlanResult:
    found = measurement_of(plan, **changes) if measured else None
    return PlanResult(plan, f"{plan.strategy}/{plan.budget}", None, [], found, None, error)


def test_a_plan_that_fits() -> None:
    found = plan_outcome(result(PLAN))
    assert (found.state, found.word, found.fits, found.measured) == ("good", "fits", True, True)
    assert found.message == (
        "Fits 50% (6.3 MB for the step): 6.3 MB measured, 1.20x the eager step."
    )


@pytest.mark.parametrize(
    ("measured", "said"),
    [(1.3, "1.30x the eager step, where 1.20x was predicted."), (1.204, "1.20x the eager step.")],
)
def test_a_predicted_time_below_the_measured_one_is_told_beside_it(
    measured: float, said: str
) -> None:
    found = result(PLAN, time_ratio=measured)
    assert plan_outcome(found).message.endswith(said)
    [predicted] = [words for label, words in _plan_facts(found) if label == "Predicted"]
    assert ("(1.20x, measured 1.30x)" in predicted) == (measured == 1.3)
    assert "(1.20x" in predicted


@pytest.mark.parametrize(("high", "said"), [(1.5, "1.20x the"), (1.51, "1.20x? the")])
def test_times_of_runs_that_differ_widely_are_marked(high: float, said: str) -> None:
    scattered = result(PLAN, time_ratio_third_quartile=high)
    found = plan_outcome(scattered)
    assert said in found.message and found.scattered == ("?" in said)
    unknown = plan_outcome(result(PLAN, time_ratio_third_quartile=None))
    predicted = plan_outcome(replace(scattered, measurement=None))
    assert not unknown.scattered and not predicted.scattered


def test_a_plan_of_fused_kernels_is_predicted_at_their_pace_and_says_how_far_they_are() -> None:
    fused = replace(result(PLAN, measured=False), fused=True, pace=0.5)
    eager = result(PLAN, measured=False).relative
    assert eager is not None and fused.relative == pytest.approx(0.5 * eager)
    said = "Fused kernels are near."
    measured = replace(result(PLAN, message=said), fused=True)
    assert plan_outcome(measured).message.endswith(f"the eager step. {said}")


def test_a_plan_that_was_not_measured() -> None:
    found = plan_outcome(result(PLAN, measured=False))
    assert (found.state, found.word, found.measured) == ("warning", "should fit", False)
    assert "6.3 MB predicted" in found.message and "not measured yet" in found.message


def test_a_plan_for_a_device_that_is_not_here_claims_no_check() -> None:
    said = "not validated: planned for h100, which is not here"
    device = ProfileDevice("cuda", "h100", "", 0, "roofline", 80_000_000_000)
    planned = replace(result(PLAN, measured=False), described=device)
    found = plan_outcome(planned)
    assert (found.state, found.word, found.measured) == ("warning", "should fit", False)
    assert found.message == (
        f"Should fit 50% (6.3 MB for the step): 6.3 MB predicted, 1.20x the eager step, {said}."
    )
    small = replace(planned, described=replace(device, memory=1_000_000))
    found = plan_outcome(small)
    assert (found.state, found.word, found.measured) == ("bad", "over device", False)
    assert found.message.startswith("Exceeds the device: ")
    assert found.message.endswith(f"in all predicted, where h100 has 1.0 MB; {said}.")
    assert reason_not_validated(planned) == said
    [dot] = plot_points([planned])
    assert (dot.peak, dot.ratio, dot.quartiles) == (PLAN.peak, planned.relative, None)
    assert plot_points([result(PLAN, measured=False)]) == []
    assert (
        reason_not_validated(result(PLAN))
        == reason_not_validated(result(PLAN, measured=False))
        == ""
    )


def test_a_plan_that_uses_more_than_its_budget() -> None:
    found = plan_outcome(result(PLAN, measured_peak=AGAIN.peak + 1))
    assert (found.state, found.word, found.fits) == ("bad", "over budget", False)


def test_a_plan_that_reserves_more_of_a_gpu_than_its_budget() -> None:
    """What was measured counts before what was predicted."""
    total = PLAN.budget_total
    assert total is not None
    plan = replace(PLAN, gpu=GpuMemory(total - 9, total - 8, total, total, 0, 2 * total, 0))
    assert plan_outcome(result(plan, measured=False)).word == "should fit"
    assert plan_outcome(result(plan, reserved_peak=total)).word == "fits"
    assert plan_outcome(result(plan, reserved_peak=total + 1)).word == "over budget"
    above = replace(PLAN, gpu=GpuMemory(total - 9, total - 8, total, total + 1, 0, 2 * total, 0))
    assert plan_outcome(result(above, measured=False)).word == "over budget"
    assert plan_outcome(result(above, reserved_peak=total)).word == "fits"


def test_a_measurement_that_contradicts_the_plan() -> None:
    found = plan_outcome(result(PLAN, status="failed", message="the gradient of w differs by 1"))
    assert (found.state, found.word) == ("bad", "failed")
    assert found.message == "Failed: the gradient of w differs by 1"


def test_results_that_are_not_reproducible_are_told() -> None:
    why = "The original model's results differ from run to run."
    found = plan_outcome(result(PLAN, bits_equal=False, message=why))
    assert (found.state, found.word) == ("good", "fits")
    assert found.message.endswith(f"the eager step. {why}")


def test_a_stage_that_broke() -> None:
    found = plan_outcome(result(PLAN, measured=False, error="validate: the module does not load"))
    assert (found.state, found.word) == ("bad", "failed")
    assert "the module does not load" in found.message


def test_a_budget_that_is_too_small() -> None:
    plan = plan_of(GRAPH, COSTS, "rockmate", "10%", 1_000_000, None)
    found = plan_outcome(result(plan, measured=False))
    assert (found.state, found.word, found.peak, found.ratio) == ("bad", "infeasible", None, None)
    assert "the smallest budget known to work is 9,000,000 bytes" in found.message
    assert describe_bound(result(plan, measured=False)) == "" and optimality_label(plan) == ""


def test_a_budget_that_the_allocator_makes_too_small_says_so() -> None:
    gpu = GpuMemory(1_900_000, 2_000_000, 4_000_000, 4_100_000, 0, 9_000_000, 0)
    plan = replace(plan_of(GRAPH, COSTS, "rockmate", "10%", 1_000_000, None), gpu=gpu)
    assert plan_outcome(result(plan, measured=False)).message.endswith(
        "work is 9,000,000 bytes: PyTorch's allocator reserves 4.1 MB for the 1.9 MB that are "
        "requested of it."
    )


def test_a_budget_is_told_to_the_byte_as_it_works_when_it_is_typed_in() -> None:
    plan = replace(plan_of(GRAPH, COSTS, "rockmate", "5%", 1_000, None), budget_total=8_999_000)
    message = plan_outcome(result(plan, measured=False)).message
    assert "5% (8,999,000 bytes in all)" in message
    assert "known to work is 9,000,000 bytes." in message


def test_a_baseline_has_no_budget_to_meet() -> None:
    plan = plan_of(GRAPH, COSTS, "keep_all", "none", None, EVERYTHING)
    assert plan_outcome(result(plan)).word == "baseline"
    assert plan_outcome(result(plan)).state == "good"
    assert build_cards([result(plan)], {}) == []


def test_bounds_in_words() -> None:
    said = "below 46.6 ms; this one takes 49.0 ms, of which at most 5.0% could be gained"
    assert said in describe_bound(result(PLAN))
    assert optimality_label(PLAN) == "at most 5.0% to gain"
    best = replace(PLAN, status="optimal", optimal_in="all plans of this graph", gap=0.0)
    assert describe_bound(result(best)).endswith("among all plans of this graph.")
    assert optimality_label(best) == "optimal"
    assert "No bound" in describe_bound(result(replace(PLAN, lower_bound=None)))


def test_the_best_plan_fits_and_is_fastest() -> None:
    quick = result(replace(PLAN, strategy="quick"), time_ratio=1.1)
    slow = result(replace(PLAN, strategy="slow"), time_ratio=1.3)
    broken = result(replace(PLAN, strategy="broken"), time_ratio=0.5, status="failed")
    unmeasured = result(replace(PLAN, strategy="unmeasured", time=0.001), measured=False)
    assert best_plan([slow, broken, unmeasured, quick]) is quick
    assert best_plan([broken, unmeasured]) is unmeasured


def test_where_nothing_fits_the_least_demanding_plan_speaks() -> None:
    small = plan_of(GRAPH, COSTS, "rockmate", "10%", 1_000_000, None)
    high, low = (
        result(replace(small, smallest_budget=bytes_), measured=False) for bytes_ in (9, 8)
    )
    assert best_plan([high, low]) is low


def test_cards_from_the_largest_budget_with_all_that_competes() -> None:
    loose = replace(PLAN, budget="90%", budget_bytes=(PLAN.peak or 0) + 10_000)
    rotor = replace(PLAN, strategy="rotor")
    keep_all = plan_of(GRAPH, COSTS, "keep_all", "none", None, EVERYTHING)
    made = build_cards(
        [result(PLAN), result(loose), result(rotor, time_ratio=1.5), result(keep_all)], {}
    )
    assert [card.budget for card in made] == ["90%", "50%"]
    assert made[1].best.plan.strategy == "rockmate"
    assert [other.plan.strategy for other in made[1].others] == ["rotor", "keep_all"]


@pytest.mark.parametrize("with_line", [True, False])
def test_breakdown_fills_the_budget(with_line: bool) -> None:
    room = 123_456
    plan = replace(
        PLAN, budget_bytes=(PLAN.peak or 0) + room, budget_total=(PLAN.budget_total or 0) + room
    )
    line = build_timeline(GRAPH, AGAIN.steps) if with_line else None
    parts, whole = peak_breakdown(result(plan), line)
    assert whole == plan.budget_total
    assert sum(part.bytes for part in parts) == plan.budget_total
    assert sum(part.share for part in parts) == pytest.approx(100)
    assert {part.key: part.bytes for part in parts}["free"] == room
    assert {part.key: part.bytes for part in parts}["parameters"] == plan.baseline.parameters


def test_breakdown_of_nothing() -> None:
    plan = plan_of(GRAPH, COSTS, "rockmate", "10%", 1_000_000, None)
    assert peak_breakdown(result(plan, measured=False), None) == ([], 0)
