"""What a program starts from can run, and the program keeps it where nothing is faster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.stages.combine.problems import problems, two_layers
from tests.stages.combine.unrolled.test_nodes import alike, peak_of
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.strategies.checkmate import STRATEGY
from tightfit.stages.combine.strategies.strategy import TrainingStep
from tightfit.stages.combine.unrolled.frontier import Solution, fastest, nodes_of
from tightfit.stages.combine.unrolled.starts import all_again, all_kept, seconds_of
from tightfit.stages.combine.unrolled.tasks import forward_stages, full_stages, tasks_of_nodes
from tightfit.stages.replay.line import FASTEST, executions

CLASSES = {"any": full_stages, "after the loss": forward_stages}


@pytest.mark.parametrize("kind", list(CLASSES))
@settings(deadline=None, max_examples=40)
@given(problem=problems(forward=3, repeats=True))
def test_starts_can_run_and_are_among_the_solutions(kind: str, problem: Problem) -> None:
    problem = alike(problem)
    tasks = tasks_of_nodes(problem)
    stages = CLASSES[kind](tasks)
    assert nodes_of(all_kept(tasks, stages)) == list(range(len(problem.nodes)))
    for chosen in (all_kept(tasks, stages), all_again(tasks, stages)):
        order = nodes_of(chosen)
        assert set(order) == set(range(len(problem.nodes)))
        there = {s for s, stored in enumerate(problem.storages) if stored.producer < 0}
        for run in executions(problem, order, in_place=False):
            assert there.issuperset(run.form.inputs)
            there = there.union(run.form.outputs).difference(run.drops)
        within = peak_of(problem, order)
        limits = Limits(gap=0.0, nodes=10_000, checks=100_000)
        found = fastest(tasks, stages, within, None, limits)
        assert found is not None and found.seconds <= seconds_of(chosen) + 1e-9


def test_a_start_is_kept_where_the_work_does_not_suffice() -> None:
    problem = two_layers()
    tasks = tasks_of_nodes(problem)
    stages = forward_stages(tasks)
    chosen = all_again(tasks, stages)
    start = Solution(chosen, 100, None, seconds_of(chosen), 0.0)
    played = executions(problem, nodes_of(chosen), in_place=True, ceiling=FASTEST)
    assert len(played) > len(problem.nodes)
    found = fastest(tasks, stages, 100, None, Limits(nodes=0, checks=1), start)
    assert found is not None and found.seconds <= start.seconds


def test_checkmate_starts_from_making_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tightfit.schemas.blocks import Blocks

    given: list[Solution | None] = []

    def solved(*arguments: object) -> None:
        start = arguments[5]
        assert start is None or isinstance(start, Solution)
        given.append(start)

    monkeypatch.setattr("tightfit.stages.combine.strategies.checkmate.fastest", solved)
    problem = deep()
    blocks = Blocks("none", [], 0.0, 0, 0, 0.0, 0, [], {})
    STRATEGY.candidates(TrainingStep(problem, blocks, {}))
    [start] = given
    assert start is not None and len(nodes_of(start.chosen)) > len(problem.nodes)


def deep() -> Problem:
    """A step in which everything made again takes much less than everything kept."""
    from tightfit.schemas.problem import Node, Storage

    forward = [
        Node(k, "forward", 1.0, 8, [k - 1] if k else [], [k], [], False, True) for k in range(6)
    ]
    loss = Node(6, "loss", 0.0, 1, [5], [6], [], False, False)
    backward = [
        Node(7 + k, "backward", 1.0, 1, [6 + k, 5 - k], [7 + k], [], False, True) for k in range(6)
    ]
    sizes = [8] * 5 + [1] * 8
    storages = [Storage(size, s, s in (5, 6), s == 12) for s, size in enumerate(sizes)]
    return Problem([*forward, loss, *backward], storages, 0)
