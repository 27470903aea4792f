from __future__ import annotations

from dataclasses import replace as with_fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, two_layers
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.actions import Compute, ComputeLoss, Free
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.bounds.lower_bounds import (
    peak_lower_bound,
    prove_time_lower_bound,
    time_lower_bound,
)
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.local_search.search import LocalSearch
from tightfit.stages.combine.local_search.views import build_view_times
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.strategies.strategy import Candidate, load_strategy
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ArtifactError, ScheduleError


@settings(max_examples=200, deadline=None)
@given(problems(), st.booleans(), st.integers(0, 100))
def test_no_plan_that_is_found_goes_below_a_bound(
    problem: PlanningGraph, in_place: bool, percent: int
) -> None:
    graph, costs = graph_of(problem, True, view_seconds=0.5)
    condensed = build_planning_graph(graph, costs)
    local_search = LocalSearch(condensed)
    found = local_search.improve(
        {}, local_search.measure(local_search.keep_all)[0] * percent // 100
    )
    for sequence in (local_search.keep_all, found.sequence):
        if len(set(sequence)) < len(condensed.nodes):
            continue
        executions = [condensed.nodes[index].op for index in sequence]
        played = simulate(
            graph, costs, ScheduleLowering(graph, condensed).schedule(executions, in_place)
        )
        assert peak_lower_bound(condensed) <= played.peak
        assert time_lower_bound(graph, costs, condensed, played.peak) <= played.seconds + 1e-9


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 100))
def test_no_plan_goes_below_what_is_proven_of_views_made_again(
    problem: PlanningGraph, percent: int
) -> None:
    graph, costs = graph_of(problem, True, view_seconds=0.5, shared=True)
    condensed = build_planning_graph(graph, costs)
    local_search = LocalSearch(condensed, build_view_times(graph, costs, condensed))
    found = local_search.improve(
        {}, local_search.measure(local_search.keep_all)[0] * percent // 100
    )
    ops = [condensed.op_at(index) for index in found.sequence]
    steps = ScheduleLowering(graph, condensed).schedule(ops, True, found.ceiling)
    played = simulate(graph, costs, steps)
    assert played.seconds == pytest.approx(found.seconds)
    assert (
        prove_time_lower_bound(graph, costs, condensed, played.peak).seconds
        <= played.seconds + 1e-9
    )


def test_what_is_made_again_is_viewed_again() -> None:
    """The loss takes the most: what the first layer made is not there then."""
    problem = two_layers()
    problem.nodes[2] = with_fields(problem.nodes[2], peak=40)
    graph, costs = graph_of(problem, True, view_seconds=0.5, shared=True)
    condensed = build_planning_graph(graph, costs)
    local_search = LocalSearch(condensed, build_view_times(graph, costs, condensed))
    peak, seconds = local_search.measure(local_search.keep_all)
    found = local_search.improve({}, peak - 1)
    assert found.sequence == [0, 1, 2, 0, 3]
    assert found.seconds == seconds + 1.0 + 0.5
    proven = prove_time_lower_bound(graph, costs, condensed, peak - 1)
    assert proven.seconds == pytest.approx(found.seconds, abs=1e-4)


def test_each_view_that_is_read_counts_once() -> None:
    problem = two_layers()
    for views, seconds in ((False, 3.0), (True, 3.0 + 3 * 0.5)):
        graph, costs = graph_of(problem, views, view_seconds=0.5)
        condensed = build_planning_graph(graph, costs)
        everything = ScheduleLowering(graph, condensed).schedule(
            [node.op for node in condensed.nodes], False
        )
        played = simulate(graph, costs, everything)
        assert played.seconds == pytest.approx(seconds)
        assert time_lower_bound(graph, costs, condensed, played.peak) == pytest.approx(seconds)


def test_blocks_of_another_graph_are_refused() -> None:
    graph, costs = graph_of(two_layers(), False)
    condensed = build_planning_graph(graph, costs)
    keep_all = Candidate(
        run_actions(condensed, [node.op for node in condensed.nodes]), [], "keep all"
    )
    other = Candidate([*keep_all.actions, Compute(99)], [], "other")
    with pytest.raises(ArtifactError, match="none of the graph's"):
        build_frontier(
            FrontierProblem(graph, "", costs, condensed),
            load_strategy("rotor").about,
            [other],
            keep_all,
        )
    frees = Candidate([*keep_all.actions, Free(0)], [], "early_free")
    about = load_strategy("rotor").about
    with pytest.raises(ScheduleError, match="has a Free"):
        build_frontier(FrontierProblem(graph, "", costs, condensed), about, [frees], keep_all)
    first, *others = keep_all.actions
    assert isinstance(first, Compute)
    for wrong in (Compute(first.op, 3), ComputeLoss(first.op)):
        with pytest.raises(ScheduleError, match="the loss alone is run as one, and what an op ov"):
            build_frontier(
                FrontierProblem(graph, "", costs, condensed),
                about,
                [Candidate([wrong, *others], [], "")],
                keep_all,
            )
    with pytest.raises(ScheduleError, match="checkpoint_all makes no plan"):
        build_frontier(
            FrontierProblem(graph, "", costs, condensed),
            load_strategy("checkpoint_all").about,
            [],
            keep_all,
        )
