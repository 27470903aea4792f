"""The instances with known optima: bounds, fractional communications, whole transfers."""

from __future__ import annotations

import pytest

from tests.stages.combine.chain_offload.exhaustive_search import offload_cases
from tests.stages.combine.chain_offload.offload_chains import (
    fluid_seconds,
    min_fluid_seconds,
    offload_shares,
    plan_offload_chain,
    simple_lower_bound,
)
from tests.stages.combine.persistent import chain_of_case
from tightfit.stages.combine.chain.options import ChainProblem, build_chain_problem
from tightfit.stages.combine.chain_offload.fractional_transfers import (
    dynprog_offload_sets,
    greedy_offload_set,
)
from tightfit.stages.combine.chain_offload.lower_bound import (
    offload_lower_bound,
)

CASES = [pytest.param(case, id=case["id"]) for case in offload_cases()]
EXACT = "expected_exact_int"


def given_by(case: dict) -> tuple[ChainProblem, int, float, int]:
    ways = build_chain_problem(chain_of_case(case))
    peak = plan_offload_chain("offload_greedy", ways, case["bandwidth"]).keep_all.peak
    return ways, case["memory"], case["bandwidth"], peak


@pytest.mark.parametrize("case", CASES)
def test_bounds_and_fractional_communications_are_those_known(case: dict) -> None:
    ways, budget, bandwidth, peak = given_by(case)
    assert peak == case["expected_m_peak"]
    assert simple_lower_bound(ways, bandwidth, budget, peak) == case["expected_lower_bound"]
    first = greedy_offload_set(ways, budget, peak)
    assert list(first) == case["expected_greedy_set"]
    seconds = fluid_seconds(ways, budget, bandwidth, offload_shares(ways, first))
    assert seconds == case["expected_greedy_comm"]
    shares, left = [], float(max(0, peak - budget))
    for position in range(len(ways)):
        size = ways.at(position).ways[0].save if position else ways.always_resident
        shares.append(min(1.0, left / size) if size else 0.0)
        left -= shares[-1] * size
    assert fluid_seconds(ways, budget, bandwidth, shares) == case["expected_frac_greedy"]


@pytest.mark.parametrize("case", CASES)
def test_dynprog_is_exact_where_communications_are_fractional(case: dict) -> None:
    ways, budget, bandwidth, _ = given_by(case)
    found = dynprog_offload_sets(ways, budget, bandwidth)
    assert found.complete
    assert found.seconds[0] == case["expected_dynprog"] == case["expected_best_comm"]
    assert found.seconds[0] == min_fluid_seconds(ways, budget, bandwidth)
    best = tuple(case["one_best_comm_set"])
    assert fluid_seconds(ways, budget, bandwidth, offload_shares(ways, best)) == found.seconds[0]


@pytest.mark.parametrize("case", CASES)
def test_plans_with_whole_transfers_are_those_known(case: dict) -> None:
    ways, budget, bandwidth, _ = given_by(case)
    greedy = plan_offload_chain("offload_greedy", ways, bandwidth).within(budget)
    dynprog = plan_offload_chain("offload_dynprog", ways, bandwidth).within(budget)
    assert greedy is not None and dynprog is not None
    assert greedy.seconds == case["expected_greedy_int"]
    assert dynprog.seconds == case.get(EXACT, case["expected_best_int_ordered"])
    assert max(greedy.peak, dynprog.peak) <= budget
    for again in (False, True):
        assert offload_lower_bound(ways, bandwidth, budget, again) <= dynprog.seconds
    pofo = plan_offload_chain("pofo", ways, bandwidth).within(budget)
    assert pofo is not None and pofo.peak <= budget
    assert offload_lower_bound(ways, bandwidth, budget, True) <= pofo.seconds <= dynprog.seconds
