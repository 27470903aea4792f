"""The join program at true sizes and times against exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.chains import chains
from tests.stages.combine.join.exhaustive_search import nested_optimum, persistent_optimum
from tests.stages.combine.join.joins import chains_of_a_join, joins
from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.chain.simulate import simulate_join
from tightfit.stages.combine.join.dp_table import build_empty_join_table, fill_join_table
from tightfit.stages.combine.join.dp_table_compiled import fill_join_table_compiled
from tightfit.stages.combine.join.frontier import JoinFrontier
from tightfit.stages.combine.join.problem import JoinProblem, build_join_problem
from tightfit.stages.combine.join.unit_costs import build_unit_join
from tightfit.util.errors import ArtifactError


def seconds(join: JoinProblem, budget: int, slots: int = 500) -> float:
    plan = JoinFrontier(join, slots).within(budget)
    return inf if plan is None else plan.seconds


@given(joins(), st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_equals_all_nested_sequences(join: JoinProblem, budget: int) -> None:
    assert seconds(join, budget) == nested_optimum(join, budget)


def test_sizes_beyond_all_memory_are_refused() -> None:
    branch = Chain([ChainPosition(1, 1.0, 1.0, 2**56, 2**56, 1, 0, 0, 0, 0, "")] * 2, 1, 1)
    assert build_join_problem([branch] * 2)
    with pytest.raises(ArtifactError, match="more bytes than there are anywhere"):
        build_join_problem([branch] * 9)


@given(joins(most=3, longest=1, most_ways=1), st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_equals_all_nested_sequences_of_three_branches(join: JoinProblem, budget: int) -> None:
    assert seconds(join, budget) == nested_optimum(join, budget)


@given(joins(), st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_is_no_faster_than_any_persistent_sequence(join: JoinProblem, budget: int) -> None:
    assert seconds(join, budget) >= persistent_optimum(join, budget)


@given(joins())
@settings(max_examples=40, deadline=None)
def test_the_smallest_budget_is_the_smallest_of_nested_sequences(join: JoinProblem) -> None:
    frontier = JoinFrontier(join)
    smallest = frontier.smallest_budget
    assert nested_optimum(join, smallest) < inf
    assert nested_optimum(join, smallest - 1) == inf
    plan = frontier.within(smallest)
    assert plan is not None and plan.peak == smallest


@given(chains(longest=6), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_one_branch_is_a_chain(chain: Chain, budget: int) -> None:
    plan = ChainFrontier(build_chain_problem(chain)).within(budget)
    expected = inf if plan is None else plan.seconds
    assert seconds(build_join_problem([chain]), budget) == expected


@given(chains_of_a_join(), st.integers(0, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_is_no_slower_than_branches_planned_one_by_one(
    branches: list[Chain], more: int, data: st.DataObject
) -> None:
    """Each branch is planned by itself, in some budget, and they run one after the other; the join
    program takes no more time in the memory that this takes."""
    join = build_join_problem(branches)
    sequences = []
    for chain in branches:
        plans = ChainFrontier(build_chain_problem(chain)).plans()
        sequences.append(data.draw(st.sampled_from(plans)).sequence)
    for order in permutations(range(len(branches))):
        sequence = one_by_one(sequences, order)
        played = simulate_join(join, sequence)
        assert seconds(join, played.peak + more) <= played.seconds


def one_by_one(
    sequences: list[list[ChainOperation]], order: tuple[int, ...]
) -> list[ChainOperation]:
    """Chains' sequences as one of a join: up to the loss in order, and back in the opposite one."""
    forward: list[ChainOperation] = []
    backward: list[ChainOperation] = []
    for k in order:
        words = sequences[k]
        turn = next(step for step, action in enumerate(words) if action.action == "loss")
        forward += [replace(action, branch=k + 1) for action in words[:turn]]
        backward = [*(replace(action, branch=k + 1) for action in words[turn + 1 :]), *backward]
    return [*forward, ChainOperation("loss", 1), *backward]


@given(chains_of_a_join(most=2), st.integers(1, 12), st.integers(0, 80))
@settings(max_examples=60, deadline=None)
def test_rounding_keeps_within_the_budget_and_bounds_the_optimum(
    branches: list[Chain], slots: int, budget: int
) -> None:
    join = build_join_problem(branches)
    exact = JoinFrontier(join, 10_000).within(budget)
    frontier = JoinFrontier(join, slots)
    plan = frontier.within(budget)
    if exact is None or plan is None:
        assert exact is None and plan is None
        return
    assert plan.peak == simulate_join(join, plan.sequence).peak <= budget
    assert frontier.bound(budget) <= exact.seconds + 1e-9 <= plan.seconds + 2e-9


@given(joins(most=3, longest=6), st.integers(1, 90), st.integers(1, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_compiled_program_fills_the_same_table(
    join: JoinProblem, limit: int, slots: int, optimistic: bool
) -> None:
    plain = build_empty_join_table(join, limit, slots, optimistic)
    compiled = build_empty_join_table(join, limit, slots, optimistic)
    fill_join_table(plain)
    fill_join_table_compiled(compiled.states, compiled.grid, compiled.tables, compiled.cost)
    np.testing.assert_allclose(compiled.cost, plain.cost, rtol=1e-12, atol=1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=3),
    st.integers(0, 12),
)
@settings(max_examples=40, deadline=None)
def test_the_compiled_program_knows_unit_costs(
    branches: list[tuple[int, bool]], limit: int
) -> None:
    lengths, kept = zip(*branches, strict=True)
    join = build_unit_join(lengths, kept)
    plain, compiled = (build_empty_join_table(join, limit, 500, False) for _ in range(2))
    fill_join_table(plain)
    fill_join_table_compiled(compiled.states, compiled.grid, compiled.tables, compiled.cost)
    np.testing.assert_array_equal(compiled.cost, plain.cost)


@given(chains_of_a_join(most=2))
@settings(max_examples=30, deadline=None)
def test_plans_of_a_frontier_fall_in_peak_and_rise_in_time(branches: list[Chain]) -> None:
    frontier = JoinFrontier(build_join_problem(branches))
    plans = frontier.plans()
    for plan, after in pairwise(plans):
        assert plan.peak > after.peak and plan.seconds < after.seconds
    assert plans[0].seconds == frontier.keep_all.seconds
    assert plans[-1].peak == frontier.smallest_budget


@given(chains_of_a_join(most=3, longest=2), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_the_order_of_branches_does_not_matter(branches: list[Chain], budget: int) -> None:
    found = {seconds(build_join_problem(order), budget) for order in permutations(branches)}
    assert max(found) == pytest.approx(min(found))
