from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import plain_line, problems, two_layers
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import check_graph
from tightfit.stages.combine.local_search.search import LocalSearch
from tightfit.stages.combine.local_search.views import build_view_times
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ScheduleError


@settings(max_examples=150, deadline=None)
@given(problems(alternatives=True), st.booleans(), st.booleans(), st.integers(30, 100))
def test_the_simulator_accepts_what_local_search_makes_and_finds_the_same_peak_and_time(
    problem: PlanningGraph, views: bool, in_place: bool, percent: int
) -> None:
    graph, costs = graph_of(problem, views, view_seconds=0.5)
    check_graph(graph, "made up")
    condensed = build_planning_graph(graph, costs)
    assert condensed.storages[: len(problem.storages)] == problem.storages
    opener = ScheduleLowering(graph, condensed)
    local_search = LocalSearch(condensed, build_view_times(graph, costs, condensed))
    found = local_search.improve(
        {}, local_search.measure(local_search.keep_all)[0] * percent // 100
    )
    for sequence in (local_search.keep_all, found.sequence):
        ops = [condensed.op_at(node) for node in sequence]
        steps = opener.schedule(ops, in_place, found.ceiling)
        played = simulate(graph, costs, steps)
        assert played.peak == max(plain_line(problem, sequence, in_place, found.ceiling)[0])
        assert simulate(graph, costs, steps, accumulate=True).peak <= played.peak
    ops = [condensed.op_at(node) for node in found.sequence]
    played = simulate(graph, costs, opener.schedule(ops, True, found.ceiling))
    assert (played.peak, played.seconds) == (found.peak, pytest.approx(found.seconds))


def test_an_op_that_is_no_node_is_refused() -> None:
    graph, costs = graph_of(two_layers(), views=True)
    opener = ScheduleLowering(graph, build_planning_graph(graph, costs))
    with pytest.raises(ScheduleError, match="op 1 is a view or no op"):
        opener.schedule([0, 1], False)
