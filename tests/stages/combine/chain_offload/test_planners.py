"""All planners with a link, on random chains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from tests.stages.combine.chain_offload.exhaustive_search import offload_cases, optimum
from tests.stages.combine.chain_offload.offload_chains import (
    min_fluid_seconds,
    offload_chains,
    plan_offload_chain,
    simple_lower_bound,
)
from tests.stages.combine.persistent import chain_of_case
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.options import ChainProblem, build_chain_problem
from tightfit.stages.combine.chain_offload.fractional_transfers import dynprog_offload_sets
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    order_by_production,
    place_offload_intervals,
)
from tightfit.stages.combine.chain_offload.planner import add_intervals_to_fit
from tightfit.stages.combine.chain_offload.simulate import simulate_chain_offload
from tightfit.util.strategies import OFFLOADERS

Given = tuple[ChainProblem, HostLink, int]
CLOSE = 1 + 1e-9
FEW = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("name", OFFLOADERS)
@FEW
@given(offload_chains())
def test_every_plan_is_played_within_its_budget_and_bounds(name: str, given: Given) -> None:
    ways, link, budget = given
    plans = plan_offload_chain(name, ways, link)
    plan = plans.within(budget)
    if plan is None:
        assert plans.smallest_budget > budget
        return
    played = simulate_chain_offload(ways, link, plan.sequence)
    assert played == plan.simulation
    assert (played.seconds, played.peak) == (plan.seconds, plan.peak)
    assert plan.peak <= budget
    assert played.host_peak <= link.room
    assert plans.bound(budget) <= plan.seconds * CLOSE
    assert plans.keep_all.seconds <= plan.seconds * CLOSE
    if not OFFLOADERS[name].recomputes:
        assert played.recomputed == 0
        simple = simple_lower_bound(ways, link.bandwidth, budget, plans.keep_all.peak)
        assert simple <= plan.seconds * CLOSE if link.shared else True


@pytest.mark.parametrize("name", OFFLOADERS)
@FEW
@given(offload_chains())
def test_the_smallest_budget_known_to_work_does(name: str, given: Given) -> None:
    ways, link, _ = given
    plans = plan_offload_chain(name, ways, link)
    smallest = plans.within(plans.smallest_budget)
    assert smallest is not None and smallest.peak <= plans.smallest_budget
    assert plans.within(min(plans.needed()[0], plans.smallest_budget) - 1) is None


@pytest.mark.parametrize("name", [name for name, about in OFFLOADERS.items() if about.recomputes])
@FEW
@given(offload_chains())
def test_a_link_never_makes_a_plan_slower(name: str, given: Given) -> None:
    ways, link, budget = given
    without = ChainFrontier(ways).within(budget)
    plan = plan_offload_chain(name, ways, link).within(budget)
    none = plan_offload_chain(name, ways, HostLink(0.0)).within(budget)
    assert (without is None) == (none is None)
    if without is not None and none is not None:
        assert plan is not None and plan.seconds <= without.seconds * CLOSE
        assert none.sequence == without.sequence
        assert none.seconds == pytest.approx(without.seconds)
        assert none.peak == without.peak


@pytest.mark.parametrize("name", ["offload_greedy", "offload_dynprog"])
@FEW
@given(offload_chains())
def test_without_a_bandwidth_only_keeping_everything_is_left(name: str, given: Given) -> None:
    ways, _, budget = given
    plans = plan_offload_chain(name, ways, HostLink(0.0))
    found = plans.within(budget)
    assert found == (plans.keep_all if budget >= plans.keep_all.peak else None)


@pytest.mark.parametrize("name", ["offload_greedy", "offload_dynprog", "pofo"])
@FEW
@given(offload_chains())
def test_transfers_that_take_no_time_cost_nothing(name: str, given: Given) -> None:
    ways, _, budget = given
    plans = plan_offload_chain(name, ways, HostLink(math.inf))
    needed = plan_offload_chain("offload_greedy", ways, HostLink(math.inf)).needed()[0]
    plan = plans.within(max(budget, needed))
    assert plan is not None and plan.seconds == pytest.approx(plans.keep_all.seconds)


@FEW
@given(offload_chains())
def test_pofo_is_never_slower_than_what_it_tries(given: Given) -> None:
    ways, link, budget = given
    plan = plan_offload_chain("pofo", ways, link).within(budget)
    for name in ("autocapper", "opportunist"):
        other = plan_offload_chain(name, ways, link).within(budget)
        if other is not None:
            assert plan is not None and plan.seconds <= other.seconds * CLOSE


@FEW
@given(offload_chains())
def test_dynprog_is_never_slower_than_greedy(given: Given) -> None:
    ways, link, budget = given
    greedy = plan_offload_chain("offload_greedy", ways, link).within(budget)
    dynprog = plan_offload_chain("offload_dynprog", ways, link).within(budget)
    if greedy is not None:
        assert dynprog is not None and dynprog.seconds <= greedy.seconds * CLOSE


@settings(max_examples=60, deadline=None)
@given(offload_chains(6))
def test_the_program_of_dynprog_finds_the_best_of_all_sets(given: Given) -> None:
    ways, link, budget = given
    found = dynprog_offload_sets(ways, budget, link.bandwidth)
    assert found.complete
    least = found.seconds[0] if found.seconds else math.inf
    assert least == pytest.approx(min_fluid_seconds(ways, budget, link.bandwidth))


@settings(max_examples=12, deadline=None)
@given(offload_chains(2))
def test_no_sequence_of_all_beats_a_bound(given: Given) -> None:
    ways, link, budget = given
    best = optimum(ways, link, budget, False)
    plans = plan_offload_chain("offload_dynprog", ways, link)
    plan = plans.within(budget)
    assert plans.bound(budget) <= best * CLOSE
    if plan is not None:
        assert best <= plan.seconds * CLOSE


@settings(max_examples=8, deadline=None)
@given(offload_chains(1))
def test_no_sequence_that_runs_again_beats_a_bound(given: Given) -> None:
    ways, link, budget = given
    best = optimum(ways, link, budget, True)
    plans = plan_offload_chain("pofo", ways, link)
    plan = plans.within(budget)
    assert plans.bound(budget) <= best * CLOSE
    if plan is not None:
        assert best <= plan.seconds * CLOSE


QUICK = ("offload-public-3", "offload-public-4", "offload-public-5")


@pytest.mark.parametrize("case", [case for case in offload_cases() if case["id"] in QUICK])
def test_all_sequences_have_the_known_optimum(case: dict) -> None:
    ways = build_chain_problem(chain_of_case(case))
    best = optimum(ways, HostLink(case["bandwidth"]), case["memory"], False)
    assert best == case["expected_exact_int"]


class _Counted(IdleInterval):
    """A gap that counts how often it is hashed."""

    hashed = 0

    def __hash__(self) -> int:
        _Counted.hashed += 1
        return super().__hash__()


def test_placing_looks_at_each_gap_a_few_times() -> None:
    """A step of a large model has thousands of them."""
    count = 200
    gaps: list[IdleInterval] = [
        _Counted((False, at), 1 + at % 3, at, at + 1, 2 * count - at) for at in range(count)
    ]
    needs = [min(step, 2 * count - step) * 2 for step in range(2 * count + 2)]
    computed = ComputeSequence([], needs, [1.0] * len(needs), count, gaps)
    chosen = add_intervals_to_fit(computed, gaps[:5], count)
    assert chosen is not None and count / 4 < len(chosen) < count
    order = order_by_production(chosen)
    for wide in (False, True):
        placed = place_offload_intervals(computed, chosen, count, computed.turn, wide, order)
        assert placed is not None and {stay.gap for stay in placed} <= set(gaps)
    assert _Counted.hashed < 10 * count
