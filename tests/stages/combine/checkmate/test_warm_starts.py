"""What a program starts from can run, and the program keeps it where nothing is faster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.stages.combine.checkmate.test_node_tasks import alike, peak_of
from tests.stages.combine.problems import problems, two_layers
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.checkmate.milp import (
    CheckmateSolution,
    executed_nodes,
    keep_all_runs,
    recompute_all_runs,
    solve_checkmate,
    total_run_seconds,
)
from tightfit.stages.combine.checkmate.tasks import build_node_tasks, forward_stages, full_stages
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.strategies.checkmate import STRATEGY
from tightfit.stages.combine.strategies.strategy import PlanningProblem
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD, simulate_executions

CLASSES = {"any": full_stages, "after the loss": forward_stages}


@pytest.mark.parametrize("kind", list(CLASSES))
@settings(deadline=None, max_examples=40)
@given(problem=problems(forward=3, repeats=True))
def test_starts_can_run_and_are_among_the_solutions(kind: str, problem: PlanningGraph) -> None:
    problem = alike(problem)
    tasks = build_node_tasks(problem)
    stages = CLASSES[kind](tasks)
    assert executed_nodes(keep_all_runs(tasks, stages)) == list(range(len(problem.nodes)))
    for chosen in (keep_all_runs(tasks, stages), recompute_all_runs(tasks, stages)):
        order = executed_nodes(chosen)
        assert set(order) == set(range(len(problem.nodes)))
        there = {s for s, stored in enumerate(problem.storages) if stored.producer < 0}
        for run in simulate_executions(problem, order, in_place=False):
            assert there.issuperset(run.form.inputs)
            there = there.union(run.form.outputs).difference(run.drops)
        within = peak_of(problem, order)
        limits = SolverLimits(gap=0.0, nodes=10_000, checks=100_000)
        found = solve_checkmate(tasks, stages, within, None, limits)
        assert found is not None and found.seconds <= total_run_seconds(chosen) + 1e-9


def test_a_start_is_kept_where_the_work_does_not_suffice() -> None:
    problem = two_layers()
    tasks = build_node_tasks(problem)
    stages = forward_stages(tasks)
    chosen = recompute_all_runs(tasks, stages)
    start = CheckmateSolution(chosen, 100, None, total_run_seconds(chosen), 0.0)
    played = simulate_executions(
        problem, executed_nodes(chosen), in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    assert len(played) > len(problem.nodes)
    found = solve_checkmate(tasks, stages, 100, None, SolverLimits(nodes=0, checks=1), start)
    assert found is not None and found.seconds <= start.seconds


def test_checkmate_starts_from_making_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tightfit.schemas.blocks import Blocks

    given: list[CheckmateSolution | None] = []

    def solved(*arguments: object) -> None:
        start = arguments[5]
        assert start is None or isinstance(start, CheckmateSolution)
        given.append(start)

    monkeypatch.setattr("tightfit.stages.combine.strategies.checkmate.solve_checkmate", solved)
    problem = deep()
    blocks = Blocks("none", [], 0.0, 0, 0, 0.0, 0, [], {})
    STRATEGY.candidates(PlanningProblem(problem, blocks, {}))
    [start] = given
    assert start is not None and len(executed_nodes(start.chosen)) > len(problem.nodes)


def deep() -> PlanningGraph:
    """A step in which everything made again takes much less than everything kept."""
    from tightfit.schemas.graph.planning_graph import PlanningNode, PlanningStorage

    forward = [
        PlanningNode(k, "forward", 1.0, 8, [k - 1] if k else [], [k], [], False, True)
        for k in range(6)
    ]
    loss = PlanningNode(6, "loss", 0.0, 1, [5], [6], [], False, False)
    backward = [
        PlanningNode(7 + k, "backward", 1.0, 1, [6 + k, 5 - k], [7 + k], [], False, True)
        for k in range(6)
    ]
    sizes = [8] * 5 + [1] * 8
    storages = [PlanningStorage(size, s, s in (5, 6), s == 12) for s, size in enumerate(sizes)]
    return PlanningGraph([*forward, loss, *backward], storages, 0)
