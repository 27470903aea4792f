"""The persistent dynamic program against known optima and exhaustive search."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.chains import chains
from tests.stages.combine.persistent import cases, chain_of_case, optimum
from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain import frontier as chain_frontier
from tightfit.stages.combine.chain.discretize import discretize_chain
from tightfit.stages.combine.chain.dp_table import build_chain_table
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.min_memory import ChainMinMemory
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.chain.simulate import simulate_chain
from tightfit.stages.combine.strategies import rotor
from tightfit.stages.combine.strategies.strategy import Candidate
from tightfit.util.errors import ArtifactError


def best(chain: Chain, budget: int, slots: int = 500) -> float:
    plan = ChainFrontier(build_chain_problem(chain), slots).within(budget)
    return inf if plan is None else plan.seconds


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_the_persistent_optimum_of_every_known_case(case: dict) -> None:
    assert case["expected_c_mp"] == case["expected_persistent_opt"]
    expected = inf if case["expected_c_mp"] is None else case["expected_c_mp"]
    ways = build_chain_problem(chain_of_case(case))
    table = build_chain_table(ways, case["memory"] - case["a"][0], 500)
    assert table.slots.exact
    assert table.times.seconds(case["memory"] - case["a"][0]) == expected
    assert best(chain_of_case(case), case["memory"]) == expected
    assert optimum(ways, case["memory"]) == expected


@given(chains(), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_equals_exhaustive_search_with_growing_gradients(chain: Chain, budget: int) -> None:
    assert best(chain, budget) == optimum(build_chain_problem(chain), budget)


def test_sizes_beyond_all_memory_are_refused() -> None:
    ways = build_chain_problem(
        Chain([ChainPosition(1, 1.0, 1.0, 1, 1, 1, 0, 0, 0, 0, "")] * 9, 1, 1)
    )
    way = replace(ways.positions[0].ways[0], backward_peak=2**57)
    large = replace(ways.positions[0], ways=[way])
    assert ChainFrontier(replace(ways, positions=[large] * 7)).smallest_budget > 2**57
    with pytest.raises(ArtifactError, match="more bytes than there are anywhere"):
        replace(ways, positions=[large] * 8)


@given(chains())
@settings(max_examples=80, deadline=None)
def test_the_smallest_budget_is_the_smallest_that_exhaustive_search_can_use(chain: Chain) -> None:
    ways = build_chain_problem(chain)
    smallest = ChainFrontier(ways).smallest_budget
    assert optimum(ways, smallest) < inf
    assert optimum(ways, smallest - 1) == inf


@given(chains(longest=9), st.integers(1, 12), st.integers(0, 100))
@settings(max_examples=150, deadline=None)
def test_rounding_keeps_within_the_budget_and_bounds_the_optimum(
    chain: Chain, slots: int, budget: int
) -> None:
    ways = build_chain_problem(chain)
    frontier = ChainFrontier(ways, slots)
    exact = ChainFrontier(ways, 10_000).within(budget)
    plan = frontier.within(budget)
    if exact is None or plan is None:
        assert exact is None and plan is None
        return
    assert plan.peak == simulate_chain(ways, plan.sequence).peak <= budget
    assert plan.seconds >= exact.seconds - 1e-9
    bound = frontier.bound(budget)
    assert bound <= exact.seconds + 1e-9


@given(chains(longest=9), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_sequences_of_a_rounded_table_need_no_more_than_their_slots(
    chain: Chain, slots: int
) -> None:
    ways = build_chain_problem(chain)
    table = build_chain_table(ways, 60, slots)
    for count in table.times.steps():
        played = simulate_chain(ways, table.sequence(count))
        assert played.peak - ways.always_resident <= count * table.slots.unit
        expected = table.times.seconds(count * table.slots.unit)
        assert played.seconds == pytest.approx(expected, abs=1e-9)


@given(chains(longest=8), st.sampled_from([3, 20, 500]))
@settings(max_examples=60, deadline=None)
def test_less_budget_is_never_a_higher_peak_or_less_time(chain: Chain, slots: int) -> None:
    frontier = ChainFrontier(build_chain_problem(chain), slots)
    plans = [frontier.within(budget) for budget in range(frontier.smallest_budget, 80, 3)]
    found = [plan for plan in plans if plan is not None]
    assert len(found) == len(plans)
    for smaller, larger in pairwise(found):
        assert smaller.peak <= larger.peak or smaller.seconds == larger.seconds
        assert smaller.seconds >= larger.seconds - 1e-9


def test_a_plan_above_the_limit_of_its_table_is_not_forgotten_with_more_budget() -> None:
    sizes = [
        *(
            (2.5, 2.25, 4, 5, 3, 3, 3, 0),
            (2.5, 5.25, 3, 6, 2, 0, 3, 3),
            (0.25, 2, 2, 5, 6, 2, 0, 1),
        ),
        *((2.75, 2, 4, 9, 0, 0, 3, 1), (2, 3, 1, 7, 3, 2, 2, 2), (2.25, 2.75, 0, 1, 3, 3, 0, 0)),
        *((2, 3.25, 0, 5, 4, 2, 0, 0), (5.25, 4, 4, 9, 3, 2, 0, 1), (2, 0, 4, 10, 5, 0, 1, 1)),
    ]
    rows = [
        ChainPosition(p, u_f, u_b, a, abar, delta, o_f, o_b, 0, grad, "")
        for p, (u_f, u_b, a, abar, delta, o_f, o_b, grad) in enumerate(sizes, start=1)
    ]
    frontier = ChainFrontier(build_chain_problem(Chain(rows, 4, 5)), 20)
    less, more = frontier.within(46), frontier.within(49)
    assert less is not None and more is not None
    assert more.seconds <= less.seconds


@given(chains(longest=8))
@settings(max_examples=60, deadline=None)
def test_plans_of_a_frontier_fall_in_peak_and_rise_in_time(chain: Chain) -> None:
    frontier = ChainFrontier(build_chain_problem(chain))
    plans = frontier.plans()
    for plan, after in pairwise(plans):
        assert plan.peak > after.peak and plan.seconds < after.seconds
    assert plans[0].seconds == frontier.keep_all.seconds
    assert plans[-1].peak == frontier.smallest_budget


def test_a_parameter_gradient_counts_from_its_backward_on() -> None:
    chain = chain_of_case(cases()[2])
    grown = Chain(
        [
            *chain.positions[:-1],
            type(chain.positions[-1])(**{**vars(chain.positions[-1]), "grad": 5}),
        ],
        chain.a_0,
        chain.delta_0,
    )
    ways, plain = build_chain_problem(grown), build_chain_problem(chain)
    sequence = ChainFrontier(plain).keep_all.sequence
    assert simulate_chain(ways, sequence).peak > simulate_chain(plain, sequence).peak
    smallest = ChainFrontier(ways).smallest_budget
    assert 0 < smallest - ChainFrontier(plain).smallest_budget <= 5


def test_nothing_is_rounded_where_sizes_have_a_large_common_divisor() -> None:
    chain = chain_of_case(cases()[2])
    large = 1_000_003

    def scaled(field: str, value: Any) -> Any:
        return value * large if field in ("a", "abar", "delta", "o_f", "o_b") else value

    rows = [
        type(row)(**{name: scaled(name, value) for name, value in vars(row).items()})
        for row in chain.positions
    ]
    ways = build_chain_problem(Chain(rows, chain.a_0 * large, chain.delta_0 * large))
    chain_in_slots = discretize_chain(ways, 14 * large, 500)
    assert chain_in_slots.exact and chain_in_slots.unit == large


def test_walking_a_long_chain_needs_no_recursion() -> None:
    row = chain_of_case(cases()[2]).positions[0]
    rows = [type(row)(**{**vars(row), "position": p, "o_f": 0, "o_b": 0}) for p in range(1, 122)]
    ways = build_chain_problem(Chain(rows, 0, 0))
    table, least = build_chain_table(ways, 300, 40), ChainMinMemory(ways)
    depth, limit = len(inspect.stack(0)), sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 40)
    try:
        sequences = [table.sequence(table.slots.count), least.sequence()]
    finally:
        sys.setrecursionlimit(limit)
    assert all(simulate_chain(ways, sequence).peak <= 450 for sequence in sequences)
    assert len(sequences[0]) > 300


@given(chains(longest=3), st.lists(st.floats(0, 1), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_complete_frontier_has_an_optimum_for_every_budget(
    chain: Chain, shares: list[float]
) -> None:
    ways = build_chain_problem(chain)
    frontier = ChainFrontier(ways)
    plans = frontier.plans()
    assert frontier.complete
    room = frontier.keep_all.peak - frontier.smallest_budget
    for share in shares:
        budget = frontier.smallest_budget + int(share * room)
        assert min(plan.seconds for plan in plans if plan.peak <= budget) == optimum(ways, budget)


def alike(count: int) -> Chain:
    """Positions of one size, of which some take a little longer."""
    rows = [
        ChainPosition(p, 1.0 + p % 3 / 100, 2.0, 40, 220, 40, 10, 20, 0, 0, "")
        for p in range(1, count + 1)
    ]
    return Chain([*rows, ChainPosition(count + 1, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 0, "")], 40, 40)


def test_candidates_are_optimal_where_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(step: object, sequence: list[ChainOperation], origin: str) -> Candidate:
        return Candidate([], sequence, origin)

    monkeypatch.setattr(rotor, "build_candidate", plain)
    step: Any = SimpleNamespace(slots=500)
    short, long = (build_chain_problem(alike(count)) for count in (6, 24))
    assert all(candidate.optimal for candidate in rotor.chain_candidates(step, short))
    found = rotor.chain_candidates(step, long)
    assert not any(candidate.optimal for candidate in found)
    fast, slow = (simulate_chain(long, candidate.sequence) for candidate in found[:2])
    between = ChainFrontier(long).within(fast.peak - 1)
    assert between is not None and between.seconds < slow.seconds
    monkeypatch.setattr(chain_frontier, "LEAST_SEQUENCES", 4)
    monkeypatch.setattr(chain_frontier, "MOST_POSITIONS", 0)
    assert not any(candidate.optimal for candidate in rotor.chain_candidates(step, short))
