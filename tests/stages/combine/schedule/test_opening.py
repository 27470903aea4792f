from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import plain_line, problems, two_layers
from tests.stages.replay.graphs import graph_of
from tightfit.schemas.errors import ScheduleError
from tightfit.schemas.graph import check_graph
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.polish.polisher import Polisher
from tightfit.stages.combine.polish.views import views_of
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.replay.condense import condense
from tightfit.stages.replay.referee import replay


@settings(max_examples=150, deadline=None)
@given(problems(alternatives=True), st.booleans(), st.booleans(), st.integers(30, 100))
def test_replay_accepts_what_polish_makes_and_finds_the_same_peak_and_time(
    problem: Problem, views: bool, in_place: bool, percent: int
) -> None:
    graph, costs = graph_of(problem, views, view_seconds=0.5)
    check_graph(graph, "made up")
    condensed = condense(graph, costs)
    assert condensed.storages[: len(problem.storages)] == problem.storages
    opener = Opener(graph, condensed)
    polisher = Polisher(condensed, views_of(graph, costs, condensed))
    found = polisher.polish({}, polisher.measure(polisher.keep_all)[0] * percent // 100)
    for sequence in (polisher.keep_all, found.sequence):
        ops = [condensed.op_at(node) for node in sequence]
        steps = opener.schedule(ops, in_place, found.ceiling)
        played = replay(graph, costs, steps)
        assert played.peak == max(plain_line(problem, sequence, in_place, found.ceiling)[0])
        assert replay(graph, costs, steps, accumulate=True).peak <= played.peak
    ops = [condensed.op_at(node) for node in found.sequence]
    played = replay(graph, costs, opener.schedule(ops, True, found.ceiling))
    assert (played.peak, played.seconds) == (found.peak, pytest.approx(found.seconds))


def test_an_op_that_is_no_node_is_refused() -> None:
    graph, costs = graph_of(two_layers(), views=True)
    opener = Opener(graph, condense(graph, costs))
    with pytest.raises(ScheduleError, match="op 1 is a view or no op"):
        opener.schedule([0, 1], False)
