"""A plan is refined for its budget: never worse than the frontier's, the same each time, and from
nothing that does not replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stages.combine.polish.test_optimum import chain
from tests.stages.replay.graphs import graph_of
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.frontier import Frontier
from tightfit.stages.combine.frontier import Subject, frontier
from tightfit.stages.combine.refine import Player, refined
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate
from tightfit.stages.replay.condense import condense

GRAPH, COSTS = graph_of(chain([6, 3, 3, 2, 2, 4, 3], [1, 3, 5, 4, 5, 2, 3]), False)
PROBLEM = condense(GRAPH, COSTS)
PLAYER = Player(GRAPH, COSTS, Opener(GRAPH, PROBLEM))


@pytest.fixture(scope="module")
def made() -> Frontier:
    captured = Candidate(runs(PROBLEM, [node.op for node in PROBLEM.nodes]), [], "plain")
    about = strategy("rockmate").about
    return frontier(Subject(GRAPH, "digest", COSTS, PROBLEM), about, [], captured)


def budgets(made: Frontier) -> range:
    return range(made.points[-1].peak, made.points[0].peak + 1)


def test_it_is_never_slower_than_the_frontier(made: Frontier) -> None:
    assert len(made.points) > 2
    for budget in budgets(made):
        point, within = refined(PLAYER, made, budget, []), made.within(budget)
        assert point is not None and within is not None
        assert point.peak <= budget and point.seconds <= within.seconds
        PLAYER.played(point)
        assert refined(PLAYER, made, budget, []) == point


def test_a_brief_search_is_never_slower_than_the_frontier_either(made: Frontier) -> None:
    coarse = replace(made, points=[made.points[0], made.points[-1]])
    faster = 0
    for budget in budgets(made):
        point, within = refined(PLAYER, coarse, budget, brief=True), coarse.within(budget)
        assert point is not None and within is not None
        assert point.peak <= budget and point.seconds <= within.seconds
        PLAYER.played(point)
        faster += point.seconds < within.seconds
    assert faster


def test_it_finds_what_a_coarse_frontier_lacks(made: Frontier) -> None:
    coarse = replace(made, points=[made.points[0], made.points[-1]])
    found = [refined(PLAYER, coarse, budget, []) for budget in budgets(made)]
    assert len({point.seconds for point in found if point is not None}) > 2
    below = coarse.points[-1].peak - 1
    assert refined(PLAYER, replace(made, points=made.points[:1]), below + 1, []) is not None
    assert refined(PLAYER, coarse, 1, []) is None


def test_it_starts_from_what_it_is_given(made: Frontier) -> None:
    positions = PLAYER.opener.positions
    best = made.points[len(made.points) // 2]
    sequence = [positions[op] for op in best.executions]
    lacking = replace(made, points=[made.points[-1]])
    point = refined(PLAYER, lacking, best.peak, [sequence])
    assert point is not None and point.seconds <= best.seconds


def test_a_point_beside_the_budget_that_says_something_else_is_refused(made: Frontier) -> None:
    first, second, *more = made.points
    doctored = replace(made, points=[first, replace(second, seconds=second.seconds * 0.99), *more])
    with pytest.raises(ArtifactError, match="which replays to"):
        refined(PLAYER, doctored, first.peak, [])
