from __future__ import annotations

import math
from dataclasses import replace as with_fields
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.stages.combine.bounds.brute_force import TooLargeError, optimum
from tests.stages.combine.local_search.test_optimum import chain
from tests.stages.combine.local_search.test_optimum import optimum as optimum_of_chain
from tests.stages.combine.problems import problems, sequences, two_layers
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
)
from tightfit.stages.combine.bounds import cut_refinement, cuts
from tightfit.stages.combine.bounds.cut_program import CutProgram, total_node_seconds
from tightfit.stages.combine.bounds.cuts import CutBoundSolver, MultiBudgetCutBoundSolver
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.bounds.time_windows import DependencyOrder, TimeWindows
from tightfit.stages.combine.local_search.search import LocalSearch
from tightfit.stages.combine.milp import (
    MilpProgram,
    MilpSolution,
    SolverLimits,
    dual_bound,
    solve_milp,
    solve_relaxation,
)

EXACT = SolverLimits(gap=0.0, nodes=10_000, checks=1_000_000)


def moments_of(problem: PlanningGraph, data: st.DataObject) -> list[int]:
    """One to three nodes from the loss on, each depending on the one before it."""
    order = DependencyOrder(problem)
    found: list[int] = []
    for _ in range(data.draw(st.integers(1, 3))):
        later = [
            node
            for node in range(len(problem.nodes))
            if (not found and node == problem.loss)
            or order.precedes(found[-1] if found else problem.loss, node)
        ]
        if later:
            found.append(data.draw(st.sampled_from(later)))
    return found


def budget_of(problem: PlanningGraph, data: st.DataObject) -> int:
    local_search = LocalSearch(problem)
    most, least = local_search.measure(local_search.keep_all)[0], peak_lower_bound(problem)
    return data.draw(st.integers(min(least, most), most))


@settings(max_examples=150, deadline=None)
@given(problems(3, repeats=True) | problems(2, alternatives=True), st.data())
def test_no_program_is_worth_more_than_the_optimum(
    problem: PlanningGraph, data: st.DataObject
) -> None:
    budget = budget_of(problem, data)
    try:
        best = optimum(problem, budget)
    except TooLargeError:
        assume(False)
    moments = moments_of(problem, data)
    heaviest = data.draw(st.sampled_from([None, *moments]))
    program = CutProgram(
        problem, DependencyOrder(problem).intervals(moments), budget, heaviest=heaviest
    )
    arrays = program.matrix.sparse()
    unit = total_node_seconds(problem)
    parts, whole = solve_relaxation(arrays, EXACT), solve_milp(arrays, EXACT)
    assert parts.bound <= whole.bound + 1e-5
    least = CutBoundSolver(problem).solve_bound(budget)
    if best is not None:
        assert arrays.possible
        assert unit * (1 + whole.bound) <= best + 1e-9
        assert least.seconds <= best + 1e-9


def test_no_bound_of_a_step_without_seconds_is_above_zero() -> None:
    problem = two_layers()
    nodes = [with_fields(node, seconds=0.0) for node in problem.nodes]
    idle = with_fields(problem, nodes=nodes)
    assert CutBoundSolver(idle).solve_bound(LocalSearch(idle).measure(range(4))[0]).seconds <= 0.0


@settings(max_examples=100, deadline=None)
@given(problems(6, repeats=True, alternatives=True), st.data())
def test_no_sequence_is_below_a_program_at_its_peak(
    problem: PlanningGraph, data: st.DataObject
) -> None:
    sequence = data.draw(sequences(problem))
    peak, seconds = LocalSearch(problem).measure(sequence)
    moments = moments_of(problem, data)
    intervals, heaviest = (
        DependencyOrder(problem).intervals(moments),
        data.draw(st.sampled_from(moments)),
    )
    arrays = CutProgram(problem, intervals, peak, heaviest=heaviest).matrix.sparse()
    for solve in (solve_relaxation, solve_milp):
        assert total_node_seconds(problem) * (1 + solve(arrays, EXACT).bound) <= seconds + 1e-9


@settings(max_examples=100, deadline=None)
@given(problems(6, repeats=True, alternatives=True), st.data())
def test_what_a_solution_makes_is_complete(problem: PlanningGraph, data: st.DataObject) -> None:
    budget = budget_of(problem, data)
    for sequence in CutBoundSolver(problem).solve_bound(budget).sequences:
        there: set[int] = set()
        done: set[int] = set()
        for node in sequence:
            form = problem.variant_at(node, node in done)
            assert there.issuperset(form.inputs)
            there.update(form.outputs)
            done.add(node)
        assert done.issuperset(range(len(problem.nodes)))


@settings(max_examples=100, deadline=None)
@given(problems(6), st.data())
def test_what_draws_or_runs_once_keeps_its_order_ahead_of_the_loss(
    problem: PlanningGraph, data: st.DataObject
) -> None:
    once = data.draw(st.sets(st.integers(0, problem.loss - 1)))
    nodes = [
        with_fields(node, repeatable=False) if place in once else node
        for place, node in enumerate(problem.nodes)
    ]
    writes = PlanningNode(0, "forward", 0.0, 0, [nodes[0].outputs[0]], [], [], False, False)
    nodes.insert(problem.loss, writes)
    storages = [
        with_fields(storage, producer=storage.producer + (storage.producer >= problem.loss))
        for storage in problem.storages
    ]
    problem = PlanningGraph(nodes, storages, problem.state_bytes)
    turn = [place for place, node in enumerate(nodes[: problem.loss]) if _in_turn(node)]
    order = DependencyOrder(problem)
    assert all(order.precedes(place, problem.loss) for place in turn)
    for sequence in CutBoundSolver(problem).solve_bound(budget_of(problem, data)).sequences:
        first = [sequence.index(place) for place in [*turn, problem.loss]]
        assert first == sorted(first)


@settings(max_examples=100, deadline=None)
@given(problems(3, repeats=True) | problems(2, alternatives=True), st.data())
def test_no_bound_that_is_widened_is_above_the_optimum(
    problem: PlanningGraph, data: st.DataObject
) -> None:
    budget = budget_of(problem, data)
    try:
        best = optimum(problem, budget)
    except TooLargeError:
        assume(False)
    known = math.inf if best is None else best
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cuts, "TARGET_GAP", -1.0)
        patched.setattr(cut_refinement, "MIN_RELAXATION_GAIN", 0.0)
        found = CutBoundSolver(problem).solve_bound(budget, most=1, known=known)
    assert found.seconds <= known + 1e-9


@settings(max_examples=50, deadline=None)
@given(problems(6, repeats=True, alternatives=True), st.data())
def test_no_sequence_is_below_a_widened_bound_at_its_peak(
    problem: PlanningGraph, data: st.DataObject
) -> None:
    peak, seconds = LocalSearch(problem).measure(data.draw(sequences(problem)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cuts, "TARGET_GAP", -1.0)
        patched.setattr(cut_refinement, "MIN_RELAXATION_GAIN", 0.0)
        found = CutBoundSolver(problem).solve_bound(peak, most=1, known=seconds)
    assert found.seconds <= seconds + 1e-9


def test_a_bound_is_widened_where_a_known_plan_is_not_near_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = chain([6, 4, 4, 6, 6, 3, 5, 4], [2, 2, 5, 4, 5, 3, 4, 2])
    budget, moments = 18, CutBoundSolver(problem)
    best = optimum_of_chain(problem, budget)
    assert best is not None
    first = moments.solve_bound(budget, most=1)
    wider = moments.solve_bound(budget, most=1, known=best[0])
    assert first.seconds + 0.5 < wider.seconds <= best[0]
    assert len(wider.sequences) > len(first.sequences)
    assert moments.solve_bound(budget, most=1, known=first.seconds) == first
    for name, value in {"RELAXATION_WORK": 0, "MAX_REFINED_CUTS": 1}.items():
        with monkeypatch.context() as patched:
            patched.setattr(cut_refinement, name, value)
            known = moments.solve_bound(budget, most=1, known=best[0])
            assert known == first
    monkeypatch.setattr(cut_refinement, "MAX_INTEGER_WORK", -1)
    parts = moments.solve_bound(budget, most=1, known=best[0])
    assert first.seconds < parts.seconds <= wider.seconds
    assert parts.sequences == first.sequences


def _in_turn(node: PlanningNode) -> bool:
    return node.random or not node.repeatable


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [([2, 2, 2, 2, 2], [1, 1, 1, 1, 1]), ([6, 3, 3, 2, 2], [1, 3, 5, 4, 5])],
)
def test_of_a_chain_much_is_proven(sizes: list[int], seconds: list[float]) -> None:
    problem = chain(sizes, seconds)
    budget = LocalSearch(problem).measure(list(range(len(problem.nodes))))[0]
    met = 0
    while (best := optimum_of_chain(problem, budget)) is not None:
        least = CutBoundSolver(problem).solve_bound(budget).seconds
        assert least <= best[0]
        met += best[0] - least < 0.01
        budget -= 1
    assert met > 2
    assert CutBoundSolver(problem).solve_bound(3).seconds == math.inf


def test_further_moments_add_to_the_bound_and_never_take_away() -> None:
    problem = chain([6, 3, 3, 6, 2, 4, 6, 3], [1, 3, 5, 4, 5, 2, 3, 4])
    order, found = DependencyOrder(problem), list[float]()
    for budget in range(14, 30):
        one = solve_relaxation(
            CutProgram(problem, order.intervals([8]), budget).matrix.sparse(), EXACT
        )
        two = solve_relaxation(
            CutProgram(problem, order.intervals([8, 12]), budget).matrix.sparse(), EXACT
        )
        assert two.bound >= one.bound - 1e-7
        found.append(two.bound - one.bound)
    assert max(found) > 0.01


def test_of_many_budgets_programs_of_one_moment_are_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = chain([6, 3, 3, 6, 2, 4, 6, 3], [1, 3, 5, 4, 5, 2, 3, 4])
    budgets = range(12, 30)
    each = [CutBoundSolver(problem).solve_bound(budget) for budget in budgets]
    alone: list[int] = []

    class Counted(CutProgram):
        def __init__(self, problem: PlanningGraph, intervals: TimeWindows, *more: Any) -> None:
            super().__init__(problem, intervals, *more)
            alone.extend(intervals.moments if more[0] is None else ())

    monkeypatch.setattr(cuts, "CutProgram", Counted)
    many = MultiBudgetCutBoundSolver(problem)
    assert [many.solve_bound(budget) for budget in budgets] == each
    assert len(each) > len(alone) == len(set(alone)) > 2


def test_parts_count_more_often_with_rows_for_two_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = chain([3, 6, 4, 7, 4, 5, 4, 3, 2], [3, 5, 5, 6, 6, 5, 2, 3, 1])
    intervals = DependencyOrder(problem).intervals([10, 12, 13, 14])
    best = optimum_of_chain(problem, 17)

    def bound(heaviest: int | None) -> float:
        arrays = CutProgram(problem, intervals, 17, heaviest=heaviest).matrix.sparse()
        return solve_relaxation(arrays, EXACT).bound

    known, more = bound(None), bound(10)
    monkeypatch.setattr("tightfit.stages.combine.bounds.cut_program.MAX_CLOSED_CUTS", 1)
    assert best is not None
    for closer in (more, bound(10)):
        assert known + 0.05 < closer
        assert total_node_seconds(problem) * (1 + closer) <= best[0] + 1e-9


def test_what_is_overwritten_is_made_again_ahead_of_those_that_read_it_then() -> None:
    """The second node is faster in place of what the third reads beside what the second makes."""
    nodes = [
        PlanningNode(0, "forward", 5.0, 4, [], [0], [], False, True),
        PlanningNode(1, "forward", 3.0, 4, [0], [1], [InPlaceVariant(0, 1.0, 0)], False, True),
        PlanningNode(2, "forward", 1.0, 4, [0, 1], [2], [], False, True),
        PlanningNode(3, "loss", 0.0, 1, [2], [3], [], False, False),
        PlanningNode(4, "backward", 1.0, 1, [3], [4], [], False, True),
    ]
    storages = [PlanningStorage(size, op, op > 2, False) for op, size in enumerate([4, 4, 4, 1, 1])]
    problem = PlanningGraph(nodes, storages, 0)
    assert optimum(problem, 100) == 10.0
    assert CutBoundSolver(problem).solve_bound(100).seconds == pytest.approx(10.0, abs=1e-4)


def test_any_prices_give_a_bound() -> None:
    problem = chain([6, 3, 3, 2, 2], [1, 3, 5, 4, 5])
    arrays = CutProgram(problem, DependencyOrder(problem).intervals([5]), 12).matrix.sparse()
    known, draw = solve_relaxation(arrays, EXACT).bound, np.random.default_rng(0)
    assert known > 0
    for _ in range(20):
        price = draw.exponential(0.1, len(arrays.least))
        assert dual_bound(arrays, price) <= known + 1e-6


def test_work_ends_a_search_with_a_bound_that_holds() -> None:
    problem = chain([6, 4, 4, 6, 6, 3, 5, 4], [2, 2, 5, 4, 5, 3, 4, 2])
    budget = 24
    best = optimum_of_chain(problem, budget)
    assert best is not None
    for limits in (
        SolverLimits(nodes=0),
        SolverLimits(checks=1),
        SolverLimits(iterations=1),
        SolverLimits(seconds=0.0),
    ):
        decided = CutBoundSolver(problem, limits).solve_bound(budget)
        assert decided.seconds <= best[0]
        assert decided == CutBoundSolver(problem, limits).solve_bound(budget) or decided.clock


def test_moments_are_added_as_far_as_a_known_plan_is_from_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = chain([6, 4, 4, 6, 6, 3, 5, 4], [2, 2, 5, 4, 5, 3, 4, 2])
    budget, moments, solved = 18, CutBoundSolver(problem, EXACT), list[int]()
    best = optimum_of_chain(problem, budget)
    assert best is not None

    def counted(program: MilpProgram, *_: object) -> MilpSolution:
        solved.append(len(program.cost))
        return solve_milp(program, EXACT)

    monkeypatch.setattr(cuts, "solve_milp", counted)

    def programs(known: float, work: int = cuts.CUT_WORK) -> int:
        solved.clear()
        assert moments.solve_bound(budget, work=work, known=known).seconds <= best[0]
        assert solved == sorted(solved)
        return len(solved)

    every = programs(best[0])
    assert every > 4 and programs(math.inf) == every
    assert programs(math.inf, work=1) < every == programs(best[0], work=1)
    first = moments.solve_bound(budget, most=1).seconds
    assert programs(first * (1 + cuts.CLOSE_GAP / 2)) == 1 < programs(first + 10)
    assert programs(10 * best[0]) == every
