"""A plan is refined for its budget: never worse than the frontier's, the same each time, and from
nothing that does not simulate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stages.combine.local_search.test_optimum import chain
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.frontier import Frontier
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.refine_plan import PointSimulator, refine_point
from tightfit.stages.combine.strategies.strategy import Candidate, load_strategy
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.errors import ArtifactError

GRAPH, COSTS = graph_of(chain([6, 3, 3, 2, 2, 4, 3], [1, 3, 5, 4, 5, 2, 3]), False)
PROBLEM = build_planning_graph(GRAPH, COSTS)
PLAYER = PointSimulator(GRAPH, COSTS, ScheduleLowering(GRAPH, PROBLEM))


@pytest.fixture(scope="module")
def made() -> Frontier:
    captured = Candidate(run_actions(PROBLEM, [node.op for node in PROBLEM.nodes]), [], "plain")
    about = load_strategy("rockmate").about
    return build_frontier(FrontierProblem(GRAPH, "digest", COSTS, PROBLEM), about, [], captured)


def budgets(made: Frontier) -> range:
    return range(made.points[-1].peak, made.points[0].peak + 1)


def test_it_is_never_slower_than_the_frontier(made: Frontier) -> None:
    assert len(made.points) > 2
    for budget in budgets(made):
        point, within = refine_point(PLAYER, made, budget, []), made.within(budget)
        assert point is not None and within is not None
        assert point.peak <= budget and point.seconds <= within.seconds
        PLAYER.played(point)
        assert refine_point(PLAYER, made, budget, []) == point


def test_a_brief_search_is_never_slower_than_the_frontier_either(made: Frontier) -> None:
    coarse = replace(made, points=[made.points[0], made.points[-1]])
    faster = 0
    for budget in budgets(made):
        point, within = refine_point(PLAYER, coarse, budget, brief=True), coarse.within(budget)
        assert point is not None and within is not None
        assert point.peak <= budget and point.seconds <= within.seconds
        PLAYER.played(point)
        faster += point.seconds < within.seconds
    assert faster


def test_it_finds_what_a_coarse_frontier_lacks(made: Frontier) -> None:
    coarse = replace(made, points=[made.points[0], made.points[-1]])
    found = [refine_point(PLAYER, coarse, budget, []) for budget in budgets(made)]
    assert len({point.seconds for point in found if point is not None}) > 2
    below = coarse.points[-1].peak - 1
    assert refine_point(PLAYER, replace(made, points=made.points[:1]), below + 1, []) is not None
    assert refine_point(PLAYER, coarse, 1, []) is None


def test_it_starts_from_what_it_is_given(made: Frontier) -> None:
    positions = PLAYER.opener.positions
    best = made.points[len(made.points) // 2]
    sequence = [positions[op] for op in best.executions]
    lacking = replace(made, points=[made.points[-1]])
    point = refine_point(PLAYER, lacking, best.peak, [sequence])
    assert point is not None and point.seconds <= best.seconds


def test_a_point_beside_the_budget_that_says_something_else_is_refused(made: Frontier) -> None:
    first, second, *more = made.points
    doctored = replace(made, points=[first, replace(second, seconds=second.seconds * 0.99), *more])
    with pytest.raises(ArtifactError, match="where the simulator finds"):
        refine_point(PLAYER, doctored, first.peak, [])
