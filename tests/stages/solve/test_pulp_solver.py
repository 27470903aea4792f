from __future__ import annotations

import random
from dataclasses import replace

import pulp
import pytest

from tightfit.stages.solve.pulp_solver import PulpLimits, solve
from tightfit.util.solver_engines import ENGINES, SolverEngine


def knapsack(items: int = 40, seed: int = 0) -> pulp.LpProblem:
    """A hard knapsack: weights and values nearly proportional, several constraints."""
    chance = random.Random(seed)
    program = pulp.LpProblem("knapsack", pulp.LpMinimize)
    take = [program.add_variable(f"x{i}", cat=pulp.LpBinary) for i in range(items)]
    weights = [[chance.randint(100, 200) for _ in take] for _ in range(5)]
    program.setObjective(
        pulp.lpSum(-(weights[0][i] + chance.randint(1, 9)) / 100 * x for i, x in enumerate(take))
    )
    for row in weights:
        program += pulp.lpSum(w * x for w, x in zip(row, take, strict=True)) <= sum(row) // 2
    return program


@pytest.mark.parametrize("engine", ENGINES)
def test_an_optimum_is_said_to_be_one(engine: SolverEngine) -> None:
    result = solve(knapsack(12), engine, PulpLimits())
    other = solve(knapsack(12), "cbc" if engine == "highs" else "highs", PulpLimits())
    assert (result.outcome, result.limit) == ("solved", "")
    assert result.bound == result.objective == pytest.approx(other.objective)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_on_work_leaves_a_gap_that_holds_the_optimum(engine: SolverEngine) -> None:
    optimum = solve(knapsack(25), engine, PulpLimits()).objective
    result = solve(knapsack(25), engine, PulpLimits(nodes=1))
    if result.outcome == "solved":
        assert result.objective >= optimum - 1e-6
        assert result.bound <= optimum + 1e-6
        assert (result.limit == "") == (result.objective == result.bound)
    else:
        assert (result.outcome, result.limit) == ("unknown", "work")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_work_gives_the_same_result(engine: SolverEngine) -> None:
    first = solve(knapsack(40), engine, PulpLimits(nodes=20))
    second = solve(knapsack(40), engine, PulpLimits(nodes=20))
    assert first == second
    assert first.limit == "work"


def test_work_within_a_node_is_limited_too() -> None:
    at_the_root = PulpLimits(nodes=1)
    whole = solve(knapsack(40), "highs", at_the_root)
    first = solve(knapsack(40), "highs", replace(at_the_root, checks=2))
    assert first == solve(knapsack(40), "highs", replace(at_the_root, checks=2))
    assert first.limit == "work"
    assert first.bound <= whole.bound
    assert first != whole


@pytest.mark.parametrize("engine", ENGINES)
def test_an_accepted_gap_is_named(engine: SolverEngine) -> None:
    optimum = solve(knapsack(25), engine, PulpLimits()).objective
    result = solve(knapsack(25), engine, PulpLimits(gap=2.0))
    assert result.limit in ("", "gap")
    assert result.objective - 2.0 - 1e-6 <= result.bound <= optimum + 1e-6
    assert optimum - 1e-6 <= result.objective


@pytest.mark.parametrize("engine", ENGINES)
def test_the_clock_is_named_when_it_decided(engine: SolverEngine) -> None:
    result = solve(knapsack(200, seed=3), engine, PulpLimits(seconds=0.3))
    assert result.limit == "clock"


@pytest.mark.parametrize("engine", ENGINES)
def test_what_has_no_solution_is_infeasible(engine: SolverEngine) -> None:
    program = knapsack(10)
    program += pulp.lpSum(program.variables()) >= 9.5
    assert solve(program, engine, PulpLimits()).outcome == "infeasible"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_start_does_not_change_the_optimum(engine: SolverEngine) -> None:
    program = knapsack(20)
    for variable in program.variables():
        variable.setInitialValue(0)
    cold = solve(knapsack(20), engine, PulpLimits())
    warm = solve(program, engine, PulpLimits(), warm=True)
    assert warm.objective == pytest.approx(cold.objective)
