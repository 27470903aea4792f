"""Every engine finds the same of a program, and tells what it has proven."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stages.combine.checkmate.test_warm_starts import deep
from tests.stages.combine.hierarchy.trees import rows_of
from tests.stages.combine.local_search.test_optimum import chain
from tests.stages.combine.local_search.test_optimum import optimum as optimum_of_chain
from tests.stages.combine.problems import problems, two_layers
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine import milp
from tightfit.stages.combine.bounds.cut_program import CutProgram
from tightfit.stages.combine.bounds.cuts import CutBoundSolver
from tightfit.stages.combine.bounds.time_windows import DependencyOrder
from tightfit.stages.combine.checkmate.milp import (
    CheckmateSolution,
    recompute_all_runs,
    solve_checkmate,
    total_run_seconds,
)
from tightfit.stages.combine.checkmate.tasks import build_node_tasks, forward_stages, full_stages
from tightfit.stages.combine.hierarchy.cluster_options import ClusterGrid
from tightfit.stages.combine.hierarchy.planner import plan_clusters
from tightfit.stages.combine.milp import (
    MilpBuilder,
    MilpProgram,
    SolverLimits,
    solve_milp,
    solve_relaxation,
)
from tightfit.stages.combine.strategies.checkmate import STRATEGY
from tightfit.stages.combine.strategies.strategy import PlanningProblem
from tightfit.util.solver_engines import ENGINES, SolverEngine

EXACT = SolverLimits(gap=0.0, nodes=10_000, checks=1_000_000)
LONG = [6, 4, 4, 6, 6, 3, 5, 4], [2, 2, 5, 4, 5, 3, 4, 2]


def by(engine: SolverEngine, limits: SolverLimits = EXACT) -> SolverLimits:
    return replace(limits, engine=engine)


def program_of(problem: PlanningGraph, budget: int) -> MilpProgram:
    moment = problem.loss
    return CutProgram(problem, DependencyOrder(problem).intervals([moment]), budget).matrix.sparse()


def test_every_engine_by_name_runs_programs() -> None:
    assert tuple(milp.SOLVER_BACKENDS) == ENGINES


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems(4, repeats=True), st.integers(50, 100))
def test_engines_agree_on_parts_and_on_the_optimum(problem: PlanningGraph, share: int) -> None:
    most = sum(storage.bytes for storage in problem.storages)
    arrays = program_of(problem, most * share // 100)
    one, other = (solve_relaxation(arrays, by(engine)).bound for engine in ENGINES)
    assert one == pytest.approx(other, abs=1e-6)
    found = [solve_milp(arrays, by(engine)) for engine in ENGINES]
    assert len(found[0].values) == len(found[1].values)
    assert found[0].bound == pytest.approx(found[1].bound, abs=1e-5)
    for solved in found:
        if len(solved.values):
            value = float(arrays.cost @ solved.values)
            assert solved.bound <= value + 1e-9
            assert value == pytest.approx(solved.bound, abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_has_no_solution_and_what_costs_nothing(engine: SolverEngine) -> None:
    matrix = MilpBuilder()
    one, other, _ = matrix.binary(1.0), matrix.binary(1.0), matrix.share(0.0)
    matrix.at_least(2.0, [(1.0, one), (1.0, other)])
    arrays = matrix.sparse()
    for solve in (solve_relaxation, solve_milp):
        solved = solve(arrays, by(engine))
        assert solved.bound == pytest.approx(2.0, abs=1e-5)
        assert solved.values.round().tolist()[:2] == [1.0, 1.0] and len(solved.values) == 3
    matrix.at_least(-1.0, [(-1.0, one), (-1.0, other)])
    for solve in (solve_relaxation, solve_milp):
        assert solve(matrix.sparse(), by(engine)).bound == math.inf


@pytest.mark.parametrize("engine", ENGINES)
def test_a_search_that_ends_early_has_a_bound_that_holds(engine: SolverEngine) -> None:
    problem = chain(*LONG)
    best = optimum_of_chain(problem, 24)
    assert best is not None
    for limits in (SolverLimits(nodes=0), SolverLimits(gap=0.1), SolverLimits(seconds=0.0)):
        decided = CutBoundSolver(problem, by(engine, limits)).solve_bound(24)
        assert decided.seconds <= best[0]
    assert CutBoundSolver(problem, by(engine)).solve_bound(24).seconds > 0.9 * best[0]
    assert CutBoundSolver(problem, by(engine)).solve_bound(3).seconds == math.inf


@pytest.mark.parametrize("engine", ENGINES)
def test_a_start_is_kept_where_nothing_is_faster(engine: SolverEngine) -> None:
    problem = two_layers()
    tasks = build_node_tasks(problem)
    stages = forward_stages(tasks)
    first = solve_checkmate(tasks, full_stages(tasks), 100, None, by(engine))
    assert first is not None and first.optimal
    again = solve_checkmate(tasks, full_stages(tasks), 100, None, by(engine), first)
    assert again is not None and again.chosen is first.chosen
    chosen = recompute_all_runs(tasks, stages)
    start = CheckmateSolution(chosen, 100, None, total_run_seconds(chosen), 0.0)
    found = solve_checkmate(tasks, stages, 100, None, by(engine, SolverLimits(nodes=0)), start)
    assert found is not None and found.seconds <= start.seconds


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(forward=3, repeats=True), less=st.integers(0, 12))
def test_runs_of_all_nodes_have_one_optimum(problem: PlanningGraph, less: int) -> None:
    tasks = build_node_tasks(problem)
    peak = max(sum(storage.bytes for storage in problem.storages) - less, 1)
    one, other = (
        solve_checkmate(tasks, full_stages(tasks), peak, None, by(engine)) for engine in ENGINES
    )
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.optimal and other.optimal
        assert one.seconds == pytest.approx(other.seconds)


def test_strategies_plan_alike_by_every_engine() -> None:
    from tightfit.schemas.blocks import Blocks

    problem = deep()
    blocks = Blocks("none", [], 0.0, 0, 0, 0.0, 0, [], {})
    grid = ClusterGrid(peaks=2, saves=2)
    whole, clustered = [], []
    for engine in ENGINES:
        step = PlanningProblem(problem, blocks, {}, engine=engine)
        whole.append(min(len(candidate.executions) for candidate in STRATEGY.candidates(step)[1:]))
        plans = plan_clusters(problem, rows_of(problem, [2]), grid, engine)
        clustered.append([len(plan.sequence) for plan in plans])
    assert whole[0] == whole[1]
    assert clustered[0] == clustered[1]
