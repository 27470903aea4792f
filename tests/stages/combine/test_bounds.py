from __future__ import annotations

from dataclasses import replace as with_fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, two_layers
from tests.stages.replay.graphs import graph_of
from tightfit.schemas.actions import Compute, Free, Loss
from tightfit.schemas.errors import ArtifactError, ScheduleError
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.bounds import least_peak, least_seconds, proven_seconds
from tightfit.stages.combine.frontier import Subject, frontier
from tightfit.stages.combine.polish.polisher import Polisher
from tightfit.stages.combine.polish.views import views_of
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate
from tightfit.stages.replay.condense import condense
from tightfit.stages.replay.referee import replay


@settings(max_examples=200, deadline=None)
@given(problems(), st.booleans(), st.integers(0, 100))
def test_no_plan_that_is_found_goes_below_a_bound(
    problem: Problem, in_place: bool, percent: int
) -> None:
    graph, costs = graph_of(problem, True, view_seconds=0.5)
    condensed = condense(graph, costs)
    polisher = Polisher(condensed)
    found = polisher.polish({}, polisher.measure(polisher.keep_all)[0] * percent // 100)
    for sequence in (polisher.keep_all, found.sequence):
        if len(set(sequence)) < len(condensed.nodes):
            continue
        executions = [condensed.nodes[index].op for index in sequence]
        played = replay(graph, costs, Opener(graph, condensed).schedule(executions, in_place))
        assert least_peak(condensed) <= played.peak
        assert least_seconds(graph, costs, condensed, played.peak) <= played.seconds + 1e-9


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 100))
def test_no_plan_goes_below_what_is_proven_of_views_made_again(
    problem: Problem, percent: int
) -> None:
    graph, costs = graph_of(problem, True, view_seconds=0.5, shared=True)
    condensed = condense(graph, costs)
    polisher = Polisher(condensed, views_of(graph, costs, condensed))
    found = polisher.polish({}, polisher.measure(polisher.keep_all)[0] * percent // 100)
    ops = [condensed.op_at(index) for index in found.sequence]
    steps = Opener(graph, condensed).schedule(ops, True, found.ceiling)
    played = replay(graph, costs, steps)
    assert played.seconds == pytest.approx(found.seconds)
    assert proven_seconds(graph, costs, condensed, played.peak).seconds <= played.seconds + 1e-9


def test_what_is_made_again_is_viewed_again() -> None:
    """The loss takes the most: what the first layer made is not there then."""
    problem = two_layers()
    problem.nodes[2] = with_fields(problem.nodes[2], peak=40)
    graph, costs = graph_of(problem, True, view_seconds=0.5, shared=True)
    condensed = condense(graph, costs)
    polisher = Polisher(condensed, views_of(graph, costs, condensed))
    peak, seconds = polisher.measure(polisher.keep_all)
    found = polisher.polish({}, peak - 1)
    assert found.sequence == [0, 1, 2, 0, 3]
    assert found.seconds == seconds + 1.0 + 0.5
    proven = proven_seconds(graph, costs, condensed, peak - 1)
    assert proven.seconds == pytest.approx(found.seconds, abs=1e-4)


def test_each_view_that_is_read_counts_once() -> None:
    problem = two_layers()
    for views, seconds in ((False, 3.0), (True, 3.0 + 3 * 0.5)):
        graph, costs = graph_of(problem, views, view_seconds=0.5)
        condensed = condense(graph, costs)
        everything = Opener(graph, condensed).schedule([node.op for node in condensed.nodes], False)
        played = replay(graph, costs, everything)
        assert played.seconds == pytest.approx(seconds)
        assert least_seconds(graph, costs, condensed, played.peak) == pytest.approx(seconds)


def test_blocks_of_another_graph_are_refused() -> None:
    graph, costs = graph_of(two_layers(), False)
    condensed = condense(graph, costs)
    keep_all = Candidate(runs(condensed, [node.op for node in condensed.nodes]), [], "keep all")
    other = Candidate([*keep_all.actions, Compute(99)], [], "other")
    with pytest.raises(ArtifactError, match="none of the graph's"):
        frontier(Subject(graph, "", costs, condensed), strategy("rotor").about, [other], keep_all)
    frees = Candidate([*keep_all.actions, Free(0)], [], "frees")
    about = strategy("rotor").about
    with pytest.raises(ScheduleError, match="has a Free"):
        frontier(Subject(graph, "", costs, condensed), about, [frees], keep_all)
    first, *others = keep_all.actions
    assert isinstance(first, Compute)
    for wrong in (Compute(first.op, 3), Loss(first.op)):
        with pytest.raises(ScheduleError, match="the loss alone is run as one, and what an op ov"):
            frontier(
                Subject(graph, "", costs, condensed),
                about,
                [Candidate([wrong, *others], [], "")],
                keep_all,
            )
    with pytest.raises(ScheduleError, match="checkpoint makes no plan"):
        frontier(Subject(graph, "", costs, condensed), strategy("checkpoint").about, [], keep_all)
