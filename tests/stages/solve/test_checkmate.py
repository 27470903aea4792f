from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.stages.solve.blocks import every_run, perceptron, tiny_blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.simulate.block import simulate_block
from tightfit.stages.solve.checkmate import (
    BlockCheckmate,
    block_stages,
    choose_stages,
    count_variables,
    full_stages,
)
from tightfit.stages.solve.heuristics import keep_all_run
from tightfit.stages.solve.pulp_solver import PulpLimits, solve
from tightfit.stages.solve.search import min_block_peak
from tightfit.util.solver_engines import SolverEngine

CLASSES = {
    "any node": full_stages,
    "after the loss": lambda problem: block_stages(problem, backward=True),
    "forward nodes": block_stages,
}


def check_against_all_runs(
    problem: PlanningGraph, kind: str, engine: SolverEngine, peak: int, save: int
) -> None:
    stages = CLASSES[kind](problem)
    assume(count_variables(stages) <= 10)
    possible = [
        figures.seconds
        for _, figures in every_run(problem, stages)
        if figures.peak <= peak and figures.save <= save
    ]
    ilp = BlockCheckmate(problem, stages, peak, save)
    if not possible:
        assert not ilp.feasible or solve(ilp.program, engine, PulpLimits()).outcome == "infeasible"
        return
    assert ilp.feasible
    result = solve(ilp.program, engine, PulpLimits())
    assert (result.outcome, result.limit) == ("solved", "")
    figures = simulate_block(problem, ilp.solution())
    assert figures.seconds == pytest.approx(min(possible))
    assert figures.peak <= peak and figures.save <= save
    once = sum(node.seconds for node in problem.nodes)
    assert once + result.bound * ilp.scale == pytest.approx(min(possible))


@st.composite
def limited_blocks(draw: st.DrawFn) -> tuple[PlanningGraph, int, int]:
    problem = draw(tiny_blocks())
    figures = simulate_block(problem, keep_all_run(problem))
    peak = draw(st.integers(min_block_peak(problem), max(figures.peak, min_block_peak(problem))))
    return problem, peak, draw(st.integers(0, figures.save))


@pytest.mark.parametrize("kind", list(CLASSES))
@settings(deadline=None, max_examples=80)
@given(limited_blocks())
def test_highs_finds_what_trying_all_runs_finds(
    kind: str, limited: tuple[PlanningGraph, int, int]
) -> None:
    problem, peak, save = limited
    check_against_all_runs(problem, kind, "highs", peak, save)


@pytest.mark.parametrize("kind", ["any node", "forward nodes"])
@settings(deadline=None, max_examples=40)
@given(limited_blocks())
def test_cbc_finds_what_trying_all_runs_finds(
    kind: str, limited: tuple[PlanningGraph, int, int]
) -> None:
    problem, peak, save = limited
    check_against_all_runs(problem, kind, "cbc", peak, save)


@pytest.mark.parametrize("engine", ["highs", "cbc"])
@pytest.mark.parametrize(
    ("save", "seconds", "again"),
    [
        (24, 15.0, []),  # everything stays
        (23, 16.0, [0]),  # a, which takes a second, is made again
        (14, 16.0, [0]),
        (13, 21.0, [0, 1]),  # nothing can stay; b needs a, which is kept then
        (4, 21.0, [0, 1]),
    ],
)
def test_known_block(engine: SolverEngine, save: int, seconds: float, again: list[int]) -> None:
    problem = perceptron()
    ilp = BlockCheckmate(problem, block_stages(problem), 100, save)
    assert solve(ilp.program, engine, PulpLimits()).outcome == "solved"
    run = ilp.solution()
    assert [k for k in run.backward if k < problem.loss] == again
    assert simulate_block(problem, run).seconds == seconds


@pytest.mark.parametrize("engine", ["highs", "cbc"])
@pytest.mark.parametrize(("peak", "save"), [(100, 3), (25, 24)])
def test_limits_that_nothing_meets(engine: SolverEngine, peak: int, save: int) -> None:
    problem = perceptron()
    ilp = BlockCheckmate(problem, block_stages(problem), peak, save)
    assert not ilp.feasible or solve(ilp.program, engine, PulpLimits()).outcome == "infeasible"


def test_the_class_shrinks_with_the_program() -> None:
    problem = perceptron()
    sizes = [count_variables(stages(problem)) for stages in CLASSES.values()]
    assert sizes == sorted(sizes, reverse=True)
    for name, size in zip(CLASSES, sizes, strict=True):
        assert choose_stages(problem, size)[0] == name
    assert choose_stages(problem, 0)[0] == "forward nodes"


@pytest.mark.parametrize("engine", ["highs", "cbc"])
def test_a_start_is_accepted(engine: SolverEngine) -> None:
    problem = perceptron()
    ilp = BlockCheckmate(problem, block_stages(problem), 100, 14)
    first = BlockCheckmate(problem, block_stages(problem), 100, 4)
    assert solve(first.program, engine, PulpLimits()).outcome == "solved"
    ilp.start_from(first.solution())
    result = solve(ilp.program, engine, PulpLimits(), warm=True)
    assert result.objective * ilp.scale == pytest.approx(1.0)
