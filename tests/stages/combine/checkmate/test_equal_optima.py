"""The two programs of a step that is unrolled, of blocks through PuLP and of tasks as arrays, have
one optimum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.stages.combine.checkmate.test_node_tasks import LIMITS
from tests.stages.solve.blocks import tiny_blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.checkmate.milp import solve_checkmate
from tightfit.stages.combine.checkmate.tasks import build_node_tasks, forward_stages, full_stages
from tightfit.stages.simulate.block import simulate_block
from tightfit.stages.solve import checkmate
from tightfit.stages.solve.heuristics import keep_all_run
from tightfit.stages.solve.pulp_solver import PulpLimits, solve

CLASSES = {
    "any": (full_stages, checkmate.full_stages),
    "after the loss": (forward_stages, checkmate.block_stages),
}


def quiet_loss(problem: PlanningGraph) -> PlanningGraph:
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
    return PlanningGraph(nodes, storages, 0)


@pytest.mark.parametrize("kind", list(CLASSES))
@settings(deadline=None, max_examples=60)
@given(block=tiny_blocks(), less=st.integers(0, 12), save=st.integers(0, 12))
def test_both_programs_have_one_optimum(
    kind: str, block: PlanningGraph, less: int, save: int
) -> None:
    problem = quiet_loss(block)
    peak = max(simulate_block(problem, keep_all_run(problem)).peak - less, 1)
    tasks, (of_tasks, of_block) = build_node_tasks(problem), CLASSES[kind]
    stages = of_block(problem)
    assert of_tasks(tasks) == stages
    assume(checkmate.count_variables(stages) <= 30)
    found = solve_checkmate(tasks, of_tasks(tasks), peak, save, LIMITS)
    program = checkmate.BlockCheckmate(problem, stages, peak, save)
    result = solve(program.program, "highs", PulpLimits()) if program.feasible else None
    if found is None:
        assert result is None or result.outcome == "infeasible"
        return
    assert result is not None and result.outcome == "solved" and found.optimal
    once = sum(node.least_seconds for node in problem.nodes)
    assert found.seconds == pytest.approx(once + result.objective * program.scale)
