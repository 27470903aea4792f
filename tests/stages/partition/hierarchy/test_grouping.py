"""The score, the candidates and the order of merges, against slow definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.partition.hierarchy.brute_force import edges, slow_border, slow_groups
from tests.stages.partition.hierarchy.flows import flow_of, random_flows
from tightfit.stages.partition.hierarchy.arrays import (
    ForwardGraph,
    LevelItems,
    list_starts,
    node_items,
)
from tightfit.stages.partition.hierarchy.grouping import (
    ItemArrays,
    _candidates,
    _dominators,
    border_bytes,
    merge_neighbors,
    split_evenly,
)


def border_of(items: LevelItems, low: int, high: int) -> int:
    """As the search counts it."""
    facts = ItemArrays(
        *(items.inputs.start, items.inputs.item, items.outputs.start, items.outputs.item),
        *(items.maker, items.last, items.bytes),
        *(list_starts(items.weight), np.zeros(1, np.uint64), np.zeros(1, np.uint64)),
    )
    return border_bytes(facts, low, high, np.full(len(items.bytes), -1), 0)


@given(random_flows(most=12), st.data())
@settings(max_examples=100, deadline=None)
def test_a_border_counts_each_value_that_crosses_it_once(
    flow: ForwardGraph, data: st.DataObject
) -> None:
    low = data.draw(st.integers(0, flow.count - 1))
    high = data.draw(st.integers(low + 1, flow.count))
    assert border_of(node_items(flow), low, high) == slow_border(flow, set(range(low, high)))


@given(random_flows(most=14))
@settings(max_examples=100, deadline=None)
def test_what_dominates_is_on_all_paths(flow: ForwardGraph) -> None:
    items = node_items(flow)
    found = _dominators(items.inputs.start, items.maker[items.inputs.item], flow.count + 1)
    before = {n: {a for a, b in edges(flow) if b == n} for n in range(flow.count)}
    dominators: list[set[int]] = []
    for node in range(flow.count):
        bound = [dominators[a] | {a} for a in before[node] if before[a]]
        common = set.intersection(*bound) if bound else set()
        dominators.append(common)
        assert found[node] == max(common, default=-1)


def test_a_dominator_far_away_is_none() -> None:
    chain = flow_of([("a", [], [1]), *(("a", [i], [1]) for i in range(5)), ("b", [1, 5], [1])])
    items = node_items(chain)
    makers = items.maker[items.inputs.item]
    assert _dominators(items.inputs.start, makers, 6)[6] == 1
    assert _dominators(items.inputs.start, makers, 5)[6] == -1


def test_candidates_are_neighbors_and_diamonds_each_once() -> None:
    low, high = _candidates(np.array([-1, 0, 0, 0]), 4)
    found = list(zip(low.tolist(), high.tolist(), strict=True))
    pairs = [(0, 2), (1, 3), (2, 4)]
    diamonds = [(0, 4), (0, 3), (1, 4)]
    assert found == sorted({*pairs, *diamonds})


@given(
    random_flows(most=14), st.integers(2, 6), st.integers(1, 6), st.sampled_from([0.25, 0.5, 1.0])
)
@settings(max_examples=150, deadline=None)
def test_the_best_candidate_is_merged_first(
    flow: ForwardGraph, limit: int, enough: int, alpha: float
) -> None:
    items = node_items(flow)
    above = _dominators(items.inputs.start, items.maker[items.inputs.item], limit)
    intervals = list(zip(*(part.tolist() for part in _candidates(above, limit)), strict=True))
    ends = merge_neighbors(items, limit, enough, alpha).tolist()
    assert ends == slow_groups(flow, intervals, limit, enough, alpha)


def test_equal_candidates_are_all_taken_before_it_is_enough() -> None:
    flow = flow_of([("ab"[i % 2], [i], [8 if i % 2 else 9]) for i in range(12)], [8], [12])
    assert merge_neighbors(node_items(flow), 4, 11, 0.5).tolist() == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(("count", "ends"), [(1, [1]), (4, [4]), (5, [4, 5]), (8, [4, 8])])
def test_full_runs(count: int, ends: list[int]) -> None:
    assert split_evenly(count, 4).tolist() == ends
