"""Chains on which the search finds the optimum, which is known from all ways to run them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.stages.combine.local_search.search import (
    BUDGET_RATIO,
    MAX_MISSES,
    LocalSearch,
    budget_grid,
)
from tightfit.util.budget import FRONTIER_BUDGETS

State = tuple[int, frozenset[int]]


def chain(sizes: Sequence[int], seconds: Sequence[float]) -> PlanningGraph:
    """Layer i makes storage i of its input; its backward reads both, and the gradient of what it
    made. The last output and the gradient of the first layer's input stay."""
    last, nodes, storages = len(sizes) - 1, list[PlanningNode](), list[PlanningStorage]()
    for index, (size, taken) in enumerate(zip(sizes, seconds, strict=True)):
        inputs = [index - 1] if index else []
        nodes.append(PlanningNode(index, "forward", taken, size, inputs, [index], [], False, True))
        storages.append(PlanningStorage(size, index, index == last, False))
    loss = last + 1
    nodes.append(PlanningNode(loss, "loss", 0.0, 0, [last], [loss], [], False, False))
    storages.append(PlanningStorage(0, loss, True, False))
    for index in range(last, -1, -1):
        made = len(nodes)
        reads = [made - 1, index, *([index - 1] if index else [])]
        nodes.append(PlanningNode(made, "backward", 1.0, 1, reads, [made], [], False, True))
        storages.append(PlanningStorage(1, made, False, index == 0))
    return PlanningGraph(nodes, storages, 0)


def optimum(problem: PlanningGraph, budget: int) -> tuple[float, list[int]] | None:
    """The least seconds within a budget with a sequence that takes them, of all orders of first
    and further runs; None where there is none. A state is up to which node loss and backward have
    run, and what is there."""
    queue: list[tuple[float, int, State, list[int]]] = [(0.0, 0, (problem.loss, frozenset()), [])]
    done: set[State] = set()
    number = itertools.count(1)
    while queue:
        seconds, _, state, sequence = heapq.heappop(queue)
        if state[0] == len(problem.nodes):
            return seconds, sequence
        if state in done:
            continue
        done.add(state)
        for ran, other in following(problem, budget, state):
            if other not in done:
                taken = sum(problem.nodes[node].seconds for node in ran)
                heapq.heappush(queue, (seconds + taken, next(number), other, [*sequence, *ran]))
    return None


def following(
    problem: PlanningGraph, budget: int, state: State
) -> Iterator[tuple[list[int], State]]:
    """What can come next: a storage is freed, or a node runs."""
    count, there = state
    for storage in there:
        stored = problem.storages[storage]
        if not (stored.held or stored.gradient):
            yield [], (count, there - {storage})
    live = sum(problem.storages[storage].bytes for storage in there)
    for index in {*range(problem.loss), count}:
        node = problem.nodes[index]
        made = frozenset(node.outputs)
        if there.issuperset(node.inputs) and not made & there and live + node.peak <= budget:
            yield [index], (count + (index == count), there | made)


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([2, 2, 2, 2, 2], [1, 1, 1, 1, 1]),
        ([6, 3, 3, 2, 2], [1, 3, 5, 4, 5]),
        ([6, 4, 4, 6, 6], [2, 2, 5, 4, 5]),
        ([1, 4, 3, 1, 1, 2], [5, 4, 3, 3, 1, 3]),
        ([3, 1, 4, 4], [2, 1, 1, 1]),
        ([6, 6, 2, 3], [5, 4, 5, 1]),
    ],
)
def test_the_search_finds_the_optimum_within_every_budget(
    sizes: list[int], seconds: list[float]
) -> None:
    problem = chain(sizes, seconds)
    local_search = LocalSearch(problem)
    budget, plain = local_search.measure(local_search.keep_all)
    assert plain == sum(seconds) + len(sizes)
    assert local_search.improve({}, budget).sequence == local_search.keep_all
    repeated = 0
    while (best := optimum(problem, budget)) is not None:
        found = local_search.improve({}, budget)
        assert (found.peak <= budget, found.seconds) == (True, best[0]), budget
        assert local_search.measure(found.sequence) == (found.peak, found.seconds)
        assert found.start is None
        repeated += len(found.sequence) - len(problem.nodes)
        budget -= 1
    assert local_search.improve({}, budget).peak > budget
    assert repeated > 0


STARTING, TIGHT = chain([3, 3, 6, 1, 4, 2], [1, 2, 1, 3, 4, 2]), 13
"""A chain and a budget within which the search finds nothing from keep-all."""


def test_a_start_is_improved_where_the_search_finds_nothing_by_itself() -> None:
    local_search = LocalSearch(STARTING)
    best = optimum(STARTING, TIGHT)
    assert best is not None
    assert local_search.improve({}, TIGHT).peak > TIGHT
    found = local_search.improve({7: best[1]}, TIGHT)
    assert (found.peak <= TIGHT, found.seconds, found.start) == (True, best[0], 7)
    slower = [*best[1][:1], 0, *best[1][1:]]
    assert local_search.measure(slower)[1] > best[0]
    assert local_search.improve({0: local_search.keep_all, 3: slower}, TIGHT) == replace(
        found, start=3
    )
    assert local_search.improve({3: slower}, 100).sequence == local_search.keep_all
    assert local_search.improve({3: slower}, 100).start is None


def test_a_sweep_goes_down_until_some_budgets_in_a_row_are_missed() -> None:
    local_search = LocalSearch(STARTING)
    best = optimum(STARTING, TIGHT)
    assert best is not None
    least = 8
    budgets = budget_grid(local_search.measure(local_search.keep_all)[0], least)
    for starts in (
        [],
        [best[1]],
        [local_search.keep_all, best[1]],
        [best[1], local_search.keep_all],
    ):
        found = local_search.sweep(starts, least, 1)[::-1]
        fits = [plan.peak <= budget for plan, budget in zip(found, budgets, strict=False)]
        fitting = sum(fits)
        assert fits == [True] * fitting + [False] * MAX_MISSES
        assert fitting == budgets.index(TIGHT) + (1 if starts else 0)
        times = [plan.seconds for plan in found[:fitting]]
        known = [optimum(STARTING, budget) for budget in budgets[: len(times)]]
        assert times == [way[0] for way in known if way is not None]
    assert len(local_search.sweep([], TIGHT + 3, 1)) == budgets.index(TIGHT + 3) + 1


def test_a_grid_ends_at_the_least_and_has_no_more_budgets_than_it_may() -> None:
    for highest, least in ((10**11, 10**10), (10**11, 10**9), (10**11, 9 * 10**10), (7, 7), (9, 0)):
        budgets = budget_grid(highest, least)
        assert budgets[0] == highest
        assert least <= budgets[-1] < max(least / BUDGET_RATIO, 2)
        assert len(budgets) <= FRONTIER_BUDGETS
        assert all(more > less for more, less in pairwise(budgets))
    assert [len(budget_grid(10**11, least)) for least in (10**10, 10**9)] == [
        FRONTIER_BUDGETS,
        FRONTIER_BUDGETS,
    ]
    assert [len(budget_grid(10**11, 10**10, most)) for most in (12, 2, 1)] == [12, 2, 1]
    assert budget_grid(100, 50, 3) == [100, 70, 50]
    assert len(budget_grid(10**11, 5 * 10**10)) == 29


def test_of_starts_the_best_counts_after_its_useless_runs_are_gone() -> None:
    problem, budget = chain([6, 6, 3, 6, 6, 4], [5, 2, 1, 4, 5, 4]), 25
    local_search = LocalSearch(problem)
    best, lower = optimum(problem, budget), optimum(problem, budget - 4)
    assert best is not None and lower is not None
    alone = local_search.improve({}, budget)
    assert alone.peak <= budget and alone.seconds > lower[0] > best[0]
    useless = [best[1][0], *best[1]]
    peak, seconds = local_search.measure(useless)
    assert peak <= budget and seconds > alone.seconds
    found = local_search.improve({4: useless}, budget)
    assert (found.sequence, found.seconds, found.start) == (best[1], best[0], 4)
    plans = local_search.sweep([best[1], lower[1]], 1, 1)[::-1]
    exact = local_search.measure(best[1])[0]
    assert {plan.seconds for plan in plans if plan.peak == exact} == {best[0]}


@pytest.mark.parametrize(
    ("sizes", "seconds", "budget"),
    [
        ([4, 6, 4, 7, 5, 5, 1], [4, 7, 1, 2, 9, 3, 7], 20),
        ([1, 7, 4, 5, 6, 2, 3, 1], [8, 4, 1, 4, 5, 6, 2, 2], 18),
    ],
)
def test_a_refinement_is_patient_where_it_may_be_far_from_the_optimum(
    sizes: list[int], seconds: list[float], budget: int
) -> None:
    problem = chain(sizes, seconds)
    local_search = LocalSearch(problem)
    best = optimum(problem, budget)
    assert best is not None
    quick = local_search.refine([local_search.keep_all], budget)
    assert quick.peak <= budget and quick.seconds > best[0]
    patient = local_search.refine([local_search.keep_all], budget, best[0])
    assert (patient.peak <= budget, patient.seconds) == (True, best[0])
