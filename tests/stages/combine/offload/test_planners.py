"""All planners with a link, on random chains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from tests.stages.combine.offload.exhaustive import offload_cases, optimum
from tests.stages.combine.offload.linked import least_fluid, linked, linked_chains
from tests.stages.combine.persistent import chain_of_case
from tightfit.schemas.link import HostLink
from tightfit.schemas.offloaders import OFFLOADERS
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.ways import Ways, ways_of_chain
from tightfit.stages.combine.offload.bound import simple_bound
from tightfit.stages.combine.offload.gaps import Computation, Gap
from tightfit.stages.combine.offload.placing import first_made_first, stays
from tightfit.stages.combine.offload.plans import capped
from tightfit.stages.combine.offload.replay import linked_replay
from tightfit.stages.combine.offload.sets import dynprog_sets

Given = tuple[Ways, HostLink, int]
CLOSE = 1 + 1e-9
FEW = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("name", OFFLOADERS)
@FEW
@given(linked_chains())
def test_every_plan_is_played_within_its_budget_and_bounds(name: str, given: Given) -> None:
    ways, link, budget = given
    plans = linked(name, ways, link)
    plan = plans.within(budget)
    if plan is None:
        assert plans.smallest_budget > budget
        return
    played = linked_replay(ways, link, plan.sequence)
    assert played == plan.replay
    assert (played.seconds, played.peak) == (plan.seconds, plan.peak)
    assert plan.peak <= budget
    assert played.host_peak <= link.room
    assert plans.bound(budget) <= plan.seconds * CLOSE
    assert plans.keep_all.seconds <= plan.seconds * CLOSE
    if not OFFLOADERS[name].recomputes:
        assert played.recomputed == 0
        simple = simple_bound(ways, link.bandwidth, budget, plans.keep_all.peak)
        assert simple <= plan.seconds * CLOSE if link.shared else True


@pytest.mark.parametrize("name", OFFLOADERS)
@FEW
@given(linked_chains())
def test_the_smallest_budget_known_to_work_does(name: str, given: Given) -> None:
    ways, link, _ = given
    plans = linked(name, ways, link)
    smallest = plans.within(plans.smallest_budget)
    assert smallest is not None and smallest.peak <= plans.smallest_budget
    assert plans.within(min(plans.needed()[0], plans.smallest_budget) - 1) is None


@pytest.mark.parametrize("name", [name for name, about in OFFLOADERS.items() if about.recomputes])
@FEW
@given(linked_chains())
def test_a_link_never_makes_a_plan_slower(name: str, given: Given) -> None:
    ways, link, budget = given
    without = ChainFrontier(ways).within(budget)
    plan = linked(name, ways, link).within(budget)
    none = linked(name, ways, HostLink(0.0)).within(budget)
    assert (without is None) == (none is None)
    if without is not None and none is not None:
        assert plan is not None and plan.seconds <= without.seconds * CLOSE
        assert none.sequence == without.sequence
        assert none.seconds == pytest.approx(without.seconds)
        assert none.peak == without.peak


@pytest.mark.parametrize("name", ["offload_greedy", "offload_dynprog"])
@FEW
@given(linked_chains())
def test_without_a_bandwidth_only_keeping_everything_is_left(name: str, given: Given) -> None:
    ways, _, budget = given
    plans = linked(name, ways, HostLink(0.0))
    found = plans.within(budget)
    assert found == (plans.keep_all if budget >= plans.keep_all.peak else None)


@pytest.mark.parametrize("name", ["offload_greedy", "offload_dynprog", "pofo"])
@FEW
@given(linked_chains())
def test_transfers_that_take_no_time_cost_nothing(name: str, given: Given) -> None:
    ways, _, budget = given
    plans = linked(name, ways, HostLink(math.inf))
    needed = linked("offload_greedy", ways, HostLink(math.inf)).needed()[0]
    plan = plans.within(max(budget, needed))
    assert plan is not None and plan.seconds == pytest.approx(plans.keep_all.seconds)


@FEW
@given(linked_chains())
def test_pofo_is_never_slower_than_what_it_tries(given: Given) -> None:
    ways, link, budget = given
    plan = linked("pofo", ways, link).within(budget)
    for name in ("autocapper", "opportunist"):
        other = linked(name, ways, link).within(budget)
        if other is not None:
            assert plan is not None and plan.seconds <= other.seconds * CLOSE


@FEW
@given(linked_chains())
def test_dynprog_is_never_slower_than_greedy(given: Given) -> None:
    ways, link, budget = given
    greedy = linked("offload_greedy", ways, link).within(budget)
    dynprog = linked("offload_dynprog", ways, link).within(budget)
    if greedy is not None:
        assert dynprog is not None and dynprog.seconds <= greedy.seconds * CLOSE


@settings(max_examples=60, deadline=None)
@given(linked_chains(6))
def test_the_program_of_dynprog_finds_the_best_of_all_sets(given: Given) -> None:
    ways, link, budget = given
    found = dynprog_sets(ways, budget, link.bandwidth)
    assert found.complete
    least = found.seconds[0] if found.seconds else math.inf
    assert least == pytest.approx(least_fluid(ways, budget, link.bandwidth))


@settings(max_examples=12, deadline=None)
@given(linked_chains(2))
def test_no_sequence_of_all_beats_a_bound(given: Given) -> None:
    ways, link, budget = given
    best = optimum(ways, link, budget, False)
    plans = linked("offload_dynprog", ways, link)
    plan = plans.within(budget)
    assert plans.bound(budget) <= best * CLOSE
    if plan is not None:
        assert best <= plan.seconds * CLOSE


@settings(max_examples=8, deadline=None)
@given(linked_chains(1))
def test_no_sequence_that_runs_again_beats_a_bound(given: Given) -> None:
    ways, link, budget = given
    best = optimum(ways, link, budget, True)
    plans = linked("pofo", ways, link)
    plan = plans.within(budget)
    assert plans.bound(budget) <= best * CLOSE
    if plan is not None:
        assert best <= plan.seconds * CLOSE


QUICK = ("offload-public-3", "offload-public-4", "offload-public-5")


@pytest.mark.parametrize("case", [case for case in offload_cases() if case["id"] in QUICK])
def test_all_sequences_have_the_known_optimum(case: dict) -> None:
    ways = ways_of_chain(chain_of_case(case))
    best = optimum(ways, HostLink(case["bandwidth"]), case["memory"], False)
    assert best == case["expected_exact_int"]


class _Counted(Gap):
    """A gap that counts how often it is hashed."""

    hashed = 0

    def __hash__(self) -> int:
        _Counted.hashed += 1
        return super().__hash__()


def test_placing_looks_at_each_gap_a_few_times() -> None:
    """A step of a large model has thousands of them."""
    count = 200
    gaps: list[Gap] = [
        _Counted((False, at), 1 + at % 3, at, at + 1, 2 * count - at) for at in range(count)
    ]
    needs = [min(step, 2 * count - step) * 2 for step in range(2 * count + 2)]
    computed = Computation([], needs, [1.0] * len(needs), count, gaps)
    chosen = capped(computed, gaps[:5], count)
    assert chosen is not None and count / 4 < len(chosen) < count
    order = first_made_first(chosen)
    for wide in (False, True):
        placed = stays(computed, chosen, count, computed.turn, wide, order)
        assert placed is not None and {stay.gap for stay in placed} <= set(gaps)
    assert _Counted.hashed < 10 * count
