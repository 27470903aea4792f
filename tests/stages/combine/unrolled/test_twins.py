"""The two programs of a step that is unrolled, of blocks through PuLP and of tasks as arrays, have
one optimum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.stages.combine.unrolled.test_nodes import LIMITS
from tests.stages.solve.blocks import tiny_blocks
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.unrolled.frontier import fastest
from tightfit.stages.combine.unrolled.tasks import forward_stages, full_stages, tasks_of_nodes
from tightfit.stages.replay.block import simulate
from tightfit.stages.solve import checkmate
from tightfit.stages.solve.engine import Limits, solve
from tightfit.stages.solve.hand import keep_all

CLASSES = {
    "any": (full_stages, checkmate.full_stages),
    "after the loss": (forward_stages, checkmate.block_stages),
}


def quiet_loss(problem: Problem) -> Problem:
    """The problem with a loss that takes no bytes: a block's program leaves its bytes out. Nothing
    overwrites what it makes, which would save bytes that are not there."""
    made, storages = problem.nodes[problem.loss].outputs, list(problem.storages)
    nodes = [
        replace(node, reuses=[reuse for reuse in node.reuses if reuse.storage not in made])
        for node in problem.nodes
    ]
    nodes[problem.loss] = replace(nodes[problem.loss], peak=0)
    for storage in made:
        storages[storage] = replace(storages[storage], bytes=0)
    return Problem(nodes, storages, 0)


@pytest.mark.parametrize("kind", list(CLASSES))
@settings(deadline=None, max_examples=60)
@given(block=tiny_blocks(), less=st.integers(0, 12), save=st.integers(0, 12))
def test_both_programs_have_one_optimum(kind: str, block: Problem, less: int, save: int) -> None:
    problem = quiet_loss(block)
    peak = max(simulate(problem, keep_all(problem)).peak - less, 1)
    tasks, (of_tasks, of_block) = tasks_of_nodes(problem), CLASSES[kind]
    stages = of_block(problem)
    assert of_tasks(tasks) == stages
    assume(checkmate.count_variables(stages) <= 30)
    found = fastest(tasks, of_tasks(tasks), peak, save, LIMITS)
    program = checkmate.Checkmate(problem, stages, peak, save)
    verdict = solve(program.program, "highs", Limits()) if program.feasible else None
    if found is None:
        assert verdict is None or verdict.outcome == "infeasible"
        return
    assert verdict is not None and verdict.outcome == "solved" and found.optimal
    once = sum(node.least_seconds for node in problem.nodes)
    assert found.seconds == pytest.approx(once + verdict.objective * program.scale)
