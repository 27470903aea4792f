"""Every engine finds the same of a program, and tells what it has proven."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stages.combine.clusters.trees import rows_of
from tests.stages.combine.polish.test_optimum import chain
from tests.stages.combine.polish.test_optimum import optimum as optimum_of_chain
from tests.stages.combine.problems import problems, two_layers
from tests.stages.combine.unrolled.test_starts import deep
from tightfit.schemas.engines import ENGINES, Engine
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.clusters.options import Grid
from tightfit.stages.combine.clusters.plans import plans_of
from tightfit.stages.combine.moment import solver
from tightfit.stages.combine.moment.deciding import Moments
from tightfit.stages.combine.moment.intervals import Order
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.moment.matrix import Matrix, SparseProgram
from tightfit.stages.combine.moment.program import Program
from tightfit.stages.combine.moment.solver import integral, relaxed
from tightfit.stages.combine.strategies.checkmate import STRATEGY
from tightfit.stages.combine.strategies.strategy import TrainingStep
from tightfit.stages.combine.unrolled.frontier import Solution, fastest
from tightfit.stages.combine.unrolled.starts import all_again, seconds_of
from tightfit.stages.combine.unrolled.tasks import forward_stages, full_stages, tasks_of_nodes

EXACT = Limits(gap=0.0, nodes=10_000, checks=1_000_000)
LONG = [6, 4, 4, 6, 6, 3, 5, 4], [2, 2, 5, 4, 5, 3, 4, 2]


def by(engine: Engine, limits: Limits = EXACT) -> Limits:
    return replace(limits, engine=engine)


def program_of(problem: Problem, budget: int) -> SparseProgram:
    moment = problem.loss
    return Program(problem, Order(problem).intervals([moment]), budget).matrix.sparse()


def test_every_engine_by_name_runs_programs() -> None:
    assert tuple(solver.ENGINES) == ENGINES


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems(4, repeats=True), st.integers(50, 100))
def test_engines_agree_on_parts_and_on_the_optimum(problem: Problem, share: int) -> None:
    most = sum(storage.bytes for storage in problem.storages)
    arrays = program_of(problem, most * share // 100)
    one, other = (relaxed(arrays, by(engine)).bound for engine in ENGINES)
    assert one == pytest.approx(other, abs=1e-6)
    found = [integral(arrays, by(engine)) for engine in ENGINES]
    assert len(found[0].values) == len(found[1].values)
    assert found[0].bound == pytest.approx(found[1].bound, abs=1e-5)
    for solved in found:
        if len(solved.values):
            value = float(arrays.cost @ solved.values)
            assert solved.bound <= value + 1e-9
            assert value == pytest.approx(solved.bound, abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_has_no_solution_and_what_costs_nothing(engine: Engine) -> None:
    matrix = Matrix()
    one, other, _ = matrix.binary(1.0), matrix.binary(1.0), matrix.share(0.0)
    matrix.at_least(2.0, [(1.0, one), (1.0, other)])
    arrays = matrix.sparse()
    for solve in (relaxed, integral):
        solved = solve(arrays, by(engine))
        assert solved.bound == pytest.approx(2.0, abs=1e-5)
        assert solved.values.round().tolist()[:2] == [1.0, 1.0] and len(solved.values) == 3
    matrix.at_least(-1.0, [(-1.0, one), (-1.0, other)])
    for solve in (relaxed, integral):
        assert solve(matrix.sparse(), by(engine)).bound == math.inf


@pytest.mark.parametrize("engine", ENGINES)
def test_a_search_that_ends_early_has_a_bound_that_holds(engine: Engine) -> None:
    problem = chain(*LONG)
    best = optimum_of_chain(problem, 24)
    assert best is not None
    for limits in (Limits(nodes=0), Limits(gap=0.1), Limits(seconds=0.0)):
        decided = Moments(problem, by(engine, limits)).decide(24)
        assert decided.seconds <= best[0]
    assert Moments(problem, by(engine)).decide(24).seconds > 0.9 * best[0]
    assert Moments(problem, by(engine)).decide(3).seconds == math.inf


@pytest.mark.parametrize("engine", ENGINES)
def test_a_start_is_kept_where_nothing_is_faster(engine: Engine) -> None:
    problem = two_layers()
    tasks = tasks_of_nodes(problem)
    stages = forward_stages(tasks)
    first = fastest(tasks, full_stages(tasks), 100, None, by(engine))
    assert first is not None and first.optimal
    again = fastest(tasks, full_stages(tasks), 100, None, by(engine), first)
    assert again is not None and again.chosen is first.chosen
    chosen = all_again(tasks, stages)
    start = Solution(chosen, 100, None, seconds_of(chosen), 0.0)
    found = fastest(tasks, stages, 100, None, by(engine, Limits(nodes=0)), start)
    assert found is not None and found.seconds <= start.seconds


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(forward=3, repeats=True), less=st.integers(0, 12))
def test_runs_of_all_nodes_have_one_optimum(problem: Problem, less: int) -> None:
    tasks = tasks_of_nodes(problem)
    peak = max(sum(storage.bytes for storage in problem.storages) - less, 1)
    one, other = (fastest(tasks, full_stages(tasks), peak, None, by(engine)) for engine in ENGINES)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.optimal and other.optimal
        assert one.seconds == pytest.approx(other.seconds)


def test_strategies_plan_alike_by_every_engine() -> None:
    from tightfit.schemas.blocks import Blocks

    problem = deep()
    blocks = Blocks("none", [], 0.0, 0, 0, 0.0, 0, [], {})
    grid = Grid(peaks=2, saves=2)
    whole, clustered = [], []
    for engine in ENGINES:
        step = TrainingStep(problem, blocks, {}, engine=engine)
        whole.append(min(len(candidate.executions) for candidate in STRATEGY.candidates(step)[1:]))
        plans = plans_of(problem, rows_of(problem, [2]), grid, engine)
        clustered.append([len(plan.sequence) for plan in plans])
    assert whole[0] == whole[1]
    assert clustered[0] == clustered[1]
