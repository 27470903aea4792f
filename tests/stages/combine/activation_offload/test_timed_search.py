"""The search with the clocks of the streams: its clocks are those of the placer and of the
simulator, and what it finds is a plan within the budget that is no slower than where it starts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.activation_offload.test_search import LINKS, budgets, played, step_of
from tests.stages.combine.problems import problems
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.activation_offload.bound import TransferBoundSolver
from tightfit.stages.combine.activation_offload.placement import TransferPlacer, offloadable_values
from tightfit.stages.combine.activation_offload.search import FULL_EFFORT, TransferSearch
from tightfit.stages.combine.activation_offload.timed_search import (
    TimedTransferSearch,
    order_by_production,
)
from tightfit.stages.combine.local_search.anneal import (
    FAST,
    OFFLOAD_FINE,
    OFFLOAD_WIDE,
    AnnealingSchedule,
)
from tightfit.stages.combine.local_search.state import EXCESS, build_state
from tightfit.stages.combine.local_search.stream_timing import build_stream_timing, finish_time
from tightfit.stages.combine.local_search.views import build_view_times
from tightfit.stages.simulate.liveness import simulate_executions

VIEWS = st.sampled_from([0.0, 1.0])
"""The seconds of each view; none are there where these are 0."""


def without_reuses(made: PlanningGraph) -> PlanningGraph:
    """A problem in which nothing runs in place: the search counts the faster and the smaller of two
    forms, of which a plan takes one."""
    return replace(made, nodes=[replace(node, reuses=[]) for node in made.nodes])


def seconds_of(mover: TimedTransferSearch, sequence: list[int], budget: int) -> tuple[float, int]:
    """When a sequence with transfers is through, and the bytes above the budget."""
    state = build_state(mover.arrays, np.array(sequence, np.int64), budget, 1)
    return float(finish_time(state, mover.arrays, mover.streams)), int(state.figures[EXCESS])


@settings(deadline=None, max_examples=60)
@given(problems(forward=4), LINKS, VIEWS, st.booleans())
def test_clocks_are_those_of_the_placer(
    made: PlanningGraph, link: HostLink, view_seconds: float, shared: bool
) -> None:
    graph, costs, problem = step_of(without_reuses(made), view_seconds, shared)
    views = build_view_times(graph, costs, problem)
    placer = TransferPlacer(problem, link, offloadable_values(graph, problem), views=views)
    mover = TimedTransferSearch(problem, placer)
    captured = range(len(problem.nodes))
    for budget in budgets(problem):
        placed = placer.place(captured, None, budget)
        if placed is None:
            continue
        order = order_by_production(problem, placed.sequence, placed.stays)
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
    st.sampled_from([FAST, OFFLOAD_WIDE, OFFLOAD_FINE]),
    VIEWS,
    st.booleans(),
)
def test_what_is_found_is_a_plan_that_is_no_slower(
    made: PlanningGraph,
    link: HostLink,
    seed: int,
    pace: AnnealingSchedule,
    view_seconds: float,
    shared: bool,
) -> None:
    graph, costs, problem = step_of(without_reuses(made), view_seconds, shared)
    views = build_view_times(graph, costs, problem)
    placer = TransferPlacer(problem, link, offloadable_values(graph, problem), views=views)
    mover = TimedTransferSearch(problem, placer)
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
        simulated = played(graph, costs, problem, placer.actions(plan), link, budget)
        assert simulated.peak <= budget
        assert simulated.seconds == pytest.approx(plan.seconds)


@settings(deadline=None, max_examples=10)
@given(problems(forward=4), LINKS)
def test_drafts_are_sequences_with_transfers(made: PlanningGraph, link: HostLink) -> None:
    graph, _, problem = step_of(made)
    placer = TransferPlacer(problem, link, offloadable_values(graph, problem))
    mover = TimedTransferSearch(problem, placer)
    for budget in budgets(problem):
        for draft in TransferBoundSolver(problem, link, placer.leaving).transfer_warm_starts(
            budget
        ):
            start = mover.drafted(*draft)
            assert [node for node in start if node < len(problem.nodes)] == draft[0]
            assert math.isfinite(seconds_of(mover, start, budget)[0])


def forth_and_back() -> PlanningGraph:
    """Three forward ops, the first of which only the last backward reads; forward op 0 takes 100
    seconds, so that it is sent rather than run again."""
    nodes = [
        PlanningNode(0, "forward", 100.0, 4, [], [0], [], False, True),
        PlanningNode(1, "forward", 4.0, 2, [0], [1], [], False, True),
        PlanningNode(2, "forward", 4.0, 2, [1], [2], [], False, True),
        PlanningNode(3, "loss", 0.0, 1, [2], [3], [], False, False),
        PlanningNode(4, "backward", 4.0, 2, [2, 3], [4], [], False, True),
        PlanningNode(5, "backward", 4.0, 1, [0, 4], [5], [], False, True),
    ]
    sizes = [4, 2, 2, 1, 2, 1]
    storages = [PlanningStorage(size, index, False, index == 5) for index, size in enumerate(sizes)]
    return PlanningGraph(nodes, storages, state_bytes=0)


def test_what_is_dear_to_make_again_is_sent_in_time() -> None:
    problem = forth_and_back()
    link = HostLink(1.0, 0.0, shared=False, device="cpu")
    mover = TimedTransferSearch(problem, TransferPlacer(problem, link, {0: 0}))
    everything = [0, 1, 2, 3, 4, 5]
    budget = max(run.peak for run in simulate_executions(problem, everything, False)) - 1
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
    linker = TransferSearch(problem, link, {0: 0})
    everything = list(range(len(problem.nodes)))
    most = max(run.peak for run in simulate_executions(problem, everything, False))
    found = linker.plan(most, [everything])
    assert found is not None and math.isfinite(found.seconds)
    assert linker.placer.place(everything, None, most - 1) is None


def test_more_moves_are_made_where_a_plan_is_far_from_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = forth_and_back()
    everything = list(range(len(problem.nodes)))
    budget = max(run.peak for run in simulate_executions(problem, everything, False)) - 1
    shares: list[int] = []
    plain = TimedTransferSearch.moved

    def moved(
        mover: TimedTransferSearch, start: list[int], most: int, share: int, *rest: Any
    ) -> list[int]:
        shares.append(share)
        return plain(mover, start, most, share, *rest)

    monkeypatch.setattr(TimedTransferSearch, "moved", moved)
    linker = TransferSearch(problem, HostLink(1e9, 0.0, shared=False, device="cpu"), {0: 0})
    found = linker.plan(budget, [everything])
    assert found is not None and set(shares) == {FULL_EFFORT.moves}
    assert found.seconds == pytest.approx(linker.moments.bound(budget).seconds)
    monkeypatch.setattr("tightfit.stages.combine.activation_offload.search.FAR_GAP", -1.0)
    assert linker.plan(budget, [everything]) == found
    assert set(shares) == {FULL_EFFORT.moves, FULL_EFFORT.slow_moves, FULL_EFFORT.further}


def test_the_bound_counts_the_room_of_the_other_memory() -> None:
    problem = forth_and_back()
    everything = list(range(len(problem.nodes)))
    budget = max(run.peak for run in simulate_executions(problem, everything, False)) - 1
    link = HostLink(1e9, 0.0, shared=False, device="cpu")
    roomy, full = (
        TransferBoundSolver(problem, replace(link, room=room), {0: 0}).bound(budget).seconds
        for room in (4, 0)
    )
    assert roomy < 2 * 100 <= full


def test_nothing_leaves_for_a_memory_without_room() -> None:
    problem = forth_and_back()
    link = HostLink(1.0, 0.0, shared=False, device="cpu", room=3)
    mover = TimedTransferSearch(problem, TransferPlacer(problem, link, {0: 0}))
    sent = mover.leaves[0]
    assert math.isinf(seconds_of(mover, [0, 1, sent, 2, 3, 4, sent + 1, 5], 100)[0])
    roomy = TimedTransferSearch(problem, TransferPlacer(problem, replace(link, room=4), {0: 0}))
    assert math.isfinite(seconds_of(roomy, [0, 1, sent, 2, 3, 4, sent + 1, 5], 100)[0])


def test_what_comes_back_must_have_left() -> None:
    problem = forth_and_back()
    link = HostLink(1.0, 0.0, shared=False, device="cpu")
    mover = TimedTransferSearch(problem, TransferPlacer(problem, link, {0: 0}))
    comes = mover.leaves[0] + 1
    assert math.isinf(seconds_of(mover, [0, 1, 2, 3, 4, comes, 5], 100)[0])


def test_what_is_made_again_unread_is_sent_when_it_was_made_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, costs, problem = step_of(forth_and_back())
    link = HostLink(1.0, 0.0, shared=False, device="cpu")
    placer = TransferPlacer(problem, link, {0: offloadable_values(graph, problem)[0]})
    mover = TimedTransferSearch(problem, placer)
    monkeypatch.setattr(placer, "place", lambda *_: None)
    leaves = mover.leaves[0]
    found = mover.placed([0, 0, 1, leaves, 2, 3, 4, leaves + 1, 5], 100)
    assert found is not None and [stay.gap.made for stay in found.stays] == [1]
    simulated = played(graph, costs, problem, placer.actions(found), link, 100)
    assert simulated.seconds == pytest.approx(found.seconds)


@pytest.mark.parametrize("room", [math.inf, 5])
def test_any_link_is_searched_by_the_same_compiled_code(room: float) -> None:
    """Arrays of other kinds of numbers would have it compiled again."""
    kinds = [array.dtype for array in build_stream_timing(2, [1, 1], [0], HostLink(1.0, room=room))]
    usual = [array.dtype for array in build_stream_timing(2, [1, 1], [0], HostLink(1.0))]
    assert kinds == usual
