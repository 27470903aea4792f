"""The search with the clocks of the lanes: its clocks are those of the placer and of the referee,
and what it finds is a plan within the budget that is no slower than where it starts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems
from tests.stages.combine.transfers.test_search import LINKS, budgets, played, step_of
from tightfit.schemas.link import HostLink
from tightfit.schemas.problem import Node, Problem, Storage
from tightfit.stages.combine.polish.anneal import CLOSING, LOOSE, QUICK, Pace
from tightfit.stages.combine.polish.lanes import lanes, through
from tightfit.stages.combine.polish.state import EXCESS, state_of
from tightfit.stages.combine.polish.views import views_of
from tightfit.stages.combine.schedule.leaving import leaving
from tightfit.stages.combine.transfers.deciding import LinkedMoments
from tightfit.stages.combine.transfers.moving import Mover, as_made
from tightfit.stages.combine.transfers.placing import Placer
from tightfit.stages.combine.transfers.search import ASKED, Linker
from tightfit.stages.replay.line import executions

VIEWS = st.sampled_from([0.0, 1.0])
"""The seconds of each view; none are there where these are 0."""


def without_reuses(made: Problem) -> Problem:
    """A problem in which nothing runs in place: the search counts the faster and the smaller of two
    forms, of which a plan takes one."""
    return replace(made, nodes=[replace(node, reuses=[]) for node in made.nodes])


def seconds_of(mover: Mover, sequence: list[int], budget: int) -> tuple[float, int]:
    """When a sequence with transfers is through, and the bytes above the budget."""
    state = state_of(mover.arrays, np.array(sequence, np.int32), budget, 1)
    return float(through(state, mover.arrays, mover.lanes)), int(state.figures[EXCESS])


@settings(deadline=None, max_examples=60)
@given(problems(forward=4), LINKS, VIEWS, st.booleans())
def test_clocks_are_those_of_the_placer(
    made: Problem, link: HostLink, view_seconds: float, shared: bool
) -> None:
    graph, costs, problem = step_of(without_reuses(made), view_seconds, shared)
    views = views_of(graph, costs, problem)
    placer = Placer(problem, link, leaving(graph, problem), views=views)
    mover = Mover(problem, placer)
    captured = range(len(problem.nodes))
    for budget in budgets(problem):
        placed = placer.place(captured, None, budget)
        if placed is None:
            continue
        order = as_made(problem, placed.sequence, placed.stays)
        exact = placer.exact(placed.sequence, placed.stays, order, budget)
        assert exact is not None
        seconds, excess = seconds_of(mover, mover.start(placed), budget)
        assert excess == 0
        assert seconds == pytest.approx(exact.seconds)


@settings(deadline=None, max_examples=30)
@given(
    problems(forward=4),
    LINKS,
    st.integers(0, 3),
    st.sampled_from([QUICK, LOOSE, CLOSING]),
    VIEWS,
    st.booleans(),
)
def test_what_is_found_is_a_plan_that_is_no_slower(
    made: Problem, link: HostLink, seed: int, pace: Pace, view_seconds: float, shared: bool
) -> None:
    graph, costs, problem = step_of(without_reuses(made), view_seconds, shared)
    views = views_of(graph, costs, problem)
    placer = Placer(problem, link, leaving(graph, problem), views=views)
    mover = Mover(problem, placer)
    for budget in budgets(problem):
        placed = placer.place(range(len(problem.nodes)), None, budget)
        if placed is None:
            continue
        found = mover.moved(mover.start(placed), budget, 50, seed, pace)
        seconds, excess = seconds_of(mover, found, budget)
        assert excess == 0
        assert seconds <= seconds_of(mover, mover.start(placed), budget)[0] * (1 + 1e-9)
        plan = mover.placed(found, budget)
        assert plan is not None and plan.seconds <= seconds * (1 + 1e-9)
        replayed = played(graph, costs, problem, placer.actions(plan), link, budget)
        assert replayed.peak <= budget
        assert replayed.seconds == pytest.approx(plan.seconds)


@settings(deadline=None, max_examples=10)
@given(problems(forward=4), LINKS)
def test_drafts_are_sequences_with_transfers(made: Problem, link: HostLink) -> None:
    graph, _, problem = step_of(made)
    placer = Placer(problem, link, leaving(graph, problem))
    mover = Mover(problem, placer)
    for budget in budgets(problem):
        for draft in LinkedMoments(problem, link, placer.leaving).linked_drafts(budget):
            start = mover.drafted(*draft)
            assert [node for node in start if node < len(problem.nodes)] == draft[0]
            assert math.isfinite(seconds_of(mover, start, budget)[0])


def forth_and_back() -> Problem:
    """Three forward ops, the first of which only the last backward reads; forward op 0 takes 100
    seconds, so that it is sent rather than run again."""
    nodes = [
        Node(0, "forward", 100.0, 4, [], [0], [], False, True),
        Node(1, "forward", 4.0, 2, [0], [1], [], False, True),
        Node(2, "forward", 4.0, 2, [1], [2], [], False, True),
        Node(3, "loss", 0.0, 1, [2], [3], [], False, False),
        Node(4, "backward", 4.0, 2, [2, 3], [4], [], False, True),
        Node(5, "backward", 4.0, 1, [0, 4], [5], [], False, True),
    ]
    sizes = [4, 2, 2, 1, 2, 1]
    storages = [Storage(size, index, False, index == 5) for index, size in enumerate(sizes)]
    return Problem(nodes, storages, state_bytes=0)


def test_what_is_dear_to_make_again_is_sent_in_time() -> None:
    problem = forth_and_back()
    link = HostLink(1.0, 0.0, shared=False, device="cpu")
    mover = Mover(problem, Placer(problem, link, {0: 0}))
    everything = [0, 1, 2, 3, 4, 5]
    budget = max(run.peak for run in executions(problem, everything, False)) - 1
    assert seconds_of(mover, everything, budget)[1] > 0
    found = mover.placed(mover.moved(everything, budget, 100, 0), budget)
    assert found is not None
    assert found.sequence == everything
    assert [stay.gap.store for stay in found.stays] == [(False, 0)]
    assert found.seconds < 2 * 100


def test_a_plan_that_takes_for_ever_is_none() -> None:
    problem = forth_and_back()
    link = HostLink(1e-320, 0.0, shared=False, device="cpu")
    assert math.isinf(link.seconds(4))
    linker = Linker(problem, link, {0: 0})
    everything = list(range(len(problem.nodes)))
    most = max(run.peak for run in executions(problem, everything, False))
    found = linker.plan(most, [everything])
    assert found is not None and math.isfinite(found.seconds)
    assert linker.placer.place(everything, None, most - 1) is None


def test_more_moves_are_made_where_a_plan_is_far_from_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = forth_and_back()
    everything = list(range(len(problem.nodes)))
    budget = max(run.peak for run in executions(problem, everything, False)) - 1
    shares: list[int] = []
    plain = Mover.moved

    def moved(mover: Mover, start: list[int], most: int, share: int, *rest: Any) -> list[int]:
        shares.append(share)
        return plain(mover, start, most, share, *rest)

    monkeypatch.setattr(Mover, "moved", moved)
    linker = Linker(problem, HostLink(1e9, 0.0, shared=False, device="cpu"), {0: 0})
    found = linker.plan(budget, [everything])
    assert found is not None and set(shares) == {ASKED.moves}
    assert found.seconds == pytest.approx(linker.moments.bound(budget).seconds)
    monkeypatch.setattr("tightfit.stages.combine.transfers.search.FAR", -1.0)
    assert linker.plan(budget, [everything]) == found
    assert set(shares) == {ASKED.moves, ASKED.patience, ASKED.further}


def test_the_bound_counts_the_room_of_the_other_memory() -> None:
    problem = forth_and_back()
    everything = list(range(len(problem.nodes)))
    budget = max(run.peak for run in executions(problem, everything, False)) - 1
    link = HostLink(1e9, 0.0, shared=False, device="cpu")
    roomy, full = (
        LinkedMoments(problem, replace(link, room=room), {0: 0}).bound(budget).seconds
        for room in (4, 0)
    )
    assert roomy < 2 * 100 <= full


def test_nothing_leaves_for_a_memory_without_room() -> None:
    problem = forth_and_back()
    link = HostLink(1.0, 0.0, shared=False, device="cpu", room=3)
    mover = Mover(problem, Placer(problem, link, {0: 0}))
    sent = mover.leaves[0]
    assert math.isinf(seconds_of(mover, [0, 1, sent, 2, 3, 4, sent + 1, 5], 100)[0])
    roomy = Mover(problem, Placer(problem, replace(link, room=4), {0: 0}))
    assert math.isfinite(seconds_of(roomy, [0, 1, sent, 2, 3, 4, sent + 1, 5], 100)[0])


def test_what_comes_back_must_have_left() -> None:
    problem = forth_and_back()
    link = HostLink(1.0, 0.0, shared=False, device="cpu")
    mover = Mover(problem, Placer(problem, link, {0: 0}))
    comes = mover.leaves[0] + 1
    assert math.isinf(seconds_of(mover, [0, 1, 2, 3, 4, comes, 5], 100)[0])


def test_what_is_made_again_unread_is_sent_when_it_was_made_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, costs, problem = step_of(forth_and_back())
    link = HostLink(1.0, 0.0, shared=False, device="cpu")
    placer = Placer(problem, link, {0: leaving(graph, problem)[0]})
    mover = Mover(problem, placer)
    monkeypatch.setattr(placer, "place", lambda *_: None)
    leaves = mover.leaves[0]
    found = mover.placed([0, 0, 1, leaves, 2, 3, 4, leaves + 1, 5], 100)
    assert found is not None and [stay.gap.made for stay in found.stays] == [1]
    replayed = played(graph, costs, problem, placer.actions(found), link, 100)
    assert replayed.seconds == pytest.approx(found.seconds)


@pytest.mark.parametrize("room", [math.inf, 5])
def test_any_link_is_searched_by_the_same_compiled_code(room: float) -> None:
    """Arrays of other kinds of numbers would have it compiled again."""
    kinds = [array.dtype for array in lanes(2, [1, 1], [0], HostLink(1.0, room=room))]
    usual = [array.dtype for array in lanes(2, [1, 1], [0], HostLink(1.0))]
    assert kinds == usual
