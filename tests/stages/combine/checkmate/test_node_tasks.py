"""The program of all nodes of a step, against trying all its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.bounds.brute_force import optimum
from tests.stages.combine.problems import problems, two_layers
from tightfit.schemas.graph.planning_graph import InPlaceVariant, PlanningGraph, PlanningNode
from tightfit.stages.combine.checkmate.milp import (
    CheckmateSolution,
    describe_optimality,
    executed_nodes,
    solve_checkmate,
)
from tightfit.stages.combine.checkmate.tasks import (
    TaskGraph,
    build_node_tasks,
    forward_stages,
    full_stages,
)
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.strategies.checkmate import MAX_OPS, STRATEGY
from tightfit.stages.combine.strategies.strategy import PlanningProblem
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD, simulate_executions
from tightfit.stages.simulate.unroll import UnrolledStage

LIMITS = SolverLimits(gap=0.0, nodes=10_000, checks=100_000)
CLASSES = {"any": full_stages, "after the loss": forward_stages}


def played(problem: PlanningGraph, sequence: Sequence[int]) -> tuple[int, float]:
    """The peak and the seconds of a sequence, in place where that takes no longer."""
    runs = simulate_executions(
        problem, sequence, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    return max(run.peak for run in runs), sum(run.seconds for run in runs)


def peak_of(problem: PlanningGraph, sequence: Sequence[int]) -> int:
    return played(problem, sequence)[0]


def alike(problem: PlanningGraph) -> PlanningGraph:
    """The problem with in-place forms that take as long and need as many bytes less, or take
    longer."""

    def form(node: PlanningNode, reuse: InPlaceVariant) -> InPlaceVariant:
        less = max(node.peak - problem.storages[reuse.storage].bytes, 0)
        return InPlaceVariant(reuse.storage, max(reuse.seconds, node.seconds), less)

    nodes = [
        replace(node, reuses=[form(node, reuse) for reuse in node.reuses]) for node in problem.nodes
    ]
    return replace(problem, nodes=nodes, state_bytes=0)


def every_order(problem: PlanningGraph, stages: Sequence[UnrolledStage]) -> Iterator[list[int]]:
    """All orders of these stages that can run."""
    choices = [(t, k) for t, stage in enumerate(stages) for k in stage.candidates]
    for taken in product((False, True), repeat=len(choices)):
        again = {choice for choice, yes in zip(choices, taken, strict=True) if yes}
        order = [
            k
            for t, stage in enumerate(stages)
            for k in (*(k for k in stage.candidates if (t, k) in again), *stage.tail)
        ]
        made: set[int] = set()
        possible = True
        for run in simulate_executions(problem, order, in_place=False):
            given = {s for s in run.form.inputs if problem.storages[s].producer < 0}
            possible = possible and made.issuperset(set(run.form.inputs) - given)
            made.update(run.form.outputs)
        if possible:
            yield order


def within(problem: PlanningGraph, orders: Sequence[list[int]], budget: int) -> float | None:
    costs = [played(problem, order) for order in orders]
    return min((seconds for peak, seconds in costs if peak <= budget), default=None)


@pytest.mark.parametrize("kind", list(CLASSES))
@settings(deadline=None, max_examples=60)
@given(problem=problems(forward=2, repeats=True), share=st.floats(0.5, 1.0))
def test_it_finds_what_trying_all_runs_finds(
    kind: str, problem: PlanningGraph, share: float
) -> None:
    problem = alike(problem)
    tasks = build_node_tasks(problem)
    stages = CLASSES[kind](tasks)
    budget = int(peak_of(problem, range(len(problem.nodes))) * share)
    best = within(problem, list(every_order(problem, stages)), budget)
    found = solve_checkmate(tasks, stages, budget, None, LIMITS)
    if best is None:
        assert found is None
        return
    assert found is not None and found.optimal
    assert found.seconds == pytest.approx(best)
    sequence = executed_nodes(found.chosen)
    peak, seconds = played(problem, sequence)
    assert peak <= budget and seconds == pytest.approx(best)


@settings(deadline=None, max_examples=40)
@given(problem=problems(forward=2, repeats=True), share=st.floats(0.5, 1.0))
def test_its_bound_holds_for_any_forms_in_place(problem: PlanningGraph, share: float) -> None:
    problem = replace(problem, state_bytes=0)
    tasks = build_node_tasks(problem)
    stages = full_stages(tasks)
    budget = int(peak_of(problem, range(len(problem.nodes))) * share)
    best = within(problem, list(every_order(problem, stages)), budget)
    found = solve_checkmate(tasks, stages, budget, None, LIMITS)
    if best is not None:
        assert found is not None and found.bound <= best + 1e-9


@settings(deadline=None, max_examples=25)
@given(problems(forward=3))
def test_no_plan_of_any_order_is_faster_than_in_place_and_reordered(problem: PlanningGraph) -> None:
    problem = alike(problem)
    tasks = build_node_tasks(problem)
    budget = peak_of(problem, range(len(problem.nodes))) - 1
    found = solve_checkmate(tasks, full_stages(tasks), budget, None, LIMITS)
    if found is not None:
        best = optimum(problem, budget)
        assert best is not None and best <= found.seconds + 1e-9


def test_work_that_does_not_suffice_is_told() -> None:
    problem = two_layers()
    tasks = build_node_tasks(problem)
    whole = CheckmateSolution([], 1, None, 2.0, 1.0)
    assert not whole.optimal and describe_optimality(whole) == "50.0% above a bound"
    known = solve_checkmate(tasks, full_stages(tasks), 100, None, LIMITS)
    assert known is not None and describe_optimality(known) == "the fastest of its kind"
    start = solve_checkmate(
        tasks, full_stages(tasks), 100, None, SolverLimits(nodes=0, checks=1), known
    )
    assert start is not None and start.seconds == known.seconds


def test_a_start_stays_where_nothing_is_faster() -> None:
    problem = two_layers()
    tasks: TaskGraph = build_node_tasks(problem)
    stages = full_stages(tasks)
    first = solve_checkmate(tasks, stages, 100, None, LIMITS)
    again = solve_checkmate(tasks, stages, 100, None, LIMITS, first)
    assert first is not None and again is not None
    assert again.chosen is first.chosen and again.seconds == first.seconds


def test_a_large_step_is_refused(large: PlanningProblem) -> None:
    count = len(large.problem.nodes)
    said = f"it has {count} ops, and an integer program of a whole step takes {MAX_OPS}"
    assert STRATEGY.supports(large) == said


@pytest.fixture
def large() -> PlanningProblem:
    from tightfit.schemas.blocks import Blocks

    problem = two_layers()
    blocks = Blocks("none", [], 0.0, 0, 0, 0.0, 0, [], {})
    return PlanningProblem(replace(problem, nodes=problem.nodes * MAX_OPS), blocks, {})
