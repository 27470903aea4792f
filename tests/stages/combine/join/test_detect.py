"""Models that are joins: the program of joins over their branches, played by the simulator."""

from __future__ import annotations

from functools import cache

import pytest

from tests.stages.partition.steps import traced
from tests.stages.solve.blocks import solve_block
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.combine.join.detect import StepJoin
from tightfit.stages.combine.join.frontier import JoinFrontier
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.strategies.strategy import PlanningProblem, load_strategy
from tightfit.stages.partition.block_chain import partition_step
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import SimulationResult, simulate
from tightfit.stages.solve.search import OptionGrid

TOWERS = "tests.stages.partition.towers"
JOINS = ["unlike", "three", "siamese", "drawing"]


@cache
def step_of(name: str) -> tuple[Graph, Costs, PlanningProblem]:
    graph, costs = traced(f"{TOWERS}:{name}")
    blocks = partition_step(graph, costs)
    options = {
        digest: solve_block(digest, problem, "highs", OptionGrid(largest=0))
        for digest, problem in blocks.problems.items()
    }
    return (
        graph,
        costs,
        PlanningProblem(build_planning_graph(graph, costs), blocks, options, graph=graph),
    )


def played(name: str, planner: str) -> list[SimulationResult]:
    graph, costs, step = step_of(name)
    assert not load_strategy(planner).supports(step)
    opener = ScheduleLowering(graph, step.problem)
    return [
        simulate(graph, costs, opener.of_actions(candidate.actions, in_place=False))
        for candidate in load_strategy(planner).candidates(step)
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", JOINS)
def test_all_plans_are_valid_and_take_the_time_and_no_more_memory_than_planned(name: str) -> None:
    _, _, step = step_of(name)
    plans = {plan.peak: plan for plan in JoinFrontier(StepJoin(step).join()).plans()}
    candidates = load_strategy("join").candidates(step)
    for candidate, found in zip(candidates, played(name, "join"), strict=True):
        plan = plans[int(candidate.origin.split()[-2])]
        assert candidate.sequence == plan.sequence
        assert found.peak <= plan.peak


@pytest.mark.parametrize("name", JOINS)
def test_nothing_is_run_again_where_everything_is_kept(name: str) -> None:
    [everything] = played(name, "keep_all")
    assert played(name, "join")[0].seconds == pytest.approx(everything.seconds)


@pytest.mark.parametrize("name", JOINS)
def test_a_join_needs_less_than_the_chain_that_it_would_be(name: str) -> None:
    smallest = min(simulated.peak for simulated in played(name, "rotor"))
    assert min(simulated.peak for simulated in played(name, "join")) < smallest


@pytest.mark.parametrize("name", JOINS)
def test_every_op_has_one_place(name: str) -> None:
    _, _, step = step_of(name)
    found = StepJoin(step)
    position = {node.op: place for place, node in enumerate(step.problem.nodes)}
    inside = [
        position[op]
        for branch in step.blocks.branches
        for block in branch.blocks
        for op in (*block.forward, *block.backward)
    ]
    places = [*inside, *found.first, *found.head, *found.tail]
    assert sorted(places) == list(range(len(step.problem.nodes)))


def test_random_numbers_in_turns_are_refused() -> None:
    _, _, step = step_of("turns")
    said = load_strategy("join").supports(step)
    assert said == "its branches take turns in drawing random numbers or writing buffers"


def test_a_step_without_branches_is_refused() -> None:
    _, _, step = step_of("headed")
    said = load_strategy("join").supports(step)
    assert said == "its forward is no join: no independent parts meet in its loss"


def test_auto_takes_the_plans_of_a_join() -> None:
    _, _, step = step_of("unlike")
    origins = {candidate.origin for candidate in load_strategy("auto").candidates(step)}
    assert any("of the join" in origin for origin in origins)
