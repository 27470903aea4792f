"""Transfers in the simulator: streams, waits, both memories, and a test for each refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as with_fields

import pytest

from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.actions import (
    Action,
    Compute,
    ComputeLoss,
    Free,
    FreeHostCopy,
    Offload,
    PassGradient,
    Prefetch,
    Wait,
)
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
)
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import TransferTotals
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.effects import schedule_effects
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import SimulationResult, simulate
from tightfit.util.errors import ScheduleError

LINK = HostLink(bandwidth=2.0, latency=0.5, shared=False, room=12, device="cpu")
Away = dict[int, list[Action]]
LEAVES: list[Action] = [Offload(0), Wait(0), Free(0)]
COMES: list[Action] = [Prefetch(0), Wait(0), FreeHostCopy(0)]


def three_layers(views: bool = False) -> tuple[Graph, Costs]:
    """Ops 0, 1 and 2 of 4 bytes and 1 s each, the loss, and ops 4 and 5, which read what 1 and 0
    made; 5 makes the gradient."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 4, [], [0], [], False, True),
        PlanningNode(1, "forward", 1.0, 4, [0], [1], [], False, True),
        PlanningNode(2, "forward", 1.0, 4, [1], [2], [], False, True),
        PlanningNode(3, "loss", 0.0, 4, [2], [3], [], False, False),
        PlanningNode(4, "backward", 1.0, 4, [1, 3], [4], [InPlaceVariant(1, 1.0, 0)], False, True),
        PlanningNode(5, "backward", 1.0, 4, [0, 4], [5], [], False, True),
    ]
    storages = [PlanningStorage(4, index, index in (2, 3), index == 5) for index in range(6)]
    return graph_of(PlanningGraph(nodes, storages, 0), views=views)


def schedule(away: Away) -> list[ScheduleStep]:
    """The step in captured order, with further actions ahead of its actions, by place."""
    plain: list[Action] = [
        Compute(0),
        Compute(1),
        Compute(2),
        ComputeLoss(3),
        Compute(4),
        Free(1),
        Compute(5),
        Free(0),
        Free(4),
        PassGradient(5),
    ]
    found: list[ScheduleStep] = []
    for place, action in enumerate(plain):
        found += [ScheduleStep(each) for each in away.get(place, [])]
        found.append(ScheduleStep(action))
    return found


def played(away: Away, link: HostLink | None = LINK) -> SimulationResult:
    return simulate(*three_layers(), schedule(away), link=link)


def refused(away: Away, match: str, link: HostLink | None = LINK) -> None:
    with pytest.raises(ScheduleError, match=match):
        played(away, link)


def test_streams_have_clocks_and_memory_follows_the_order() -> None:
    away: Away = {1: [Offload(0)], 2: [Wait(0), Free(0)], 4: [Prefetch(0)], 6: COMES[1:]}
    found = played(away)
    rows = {type(step.action): step for step in found.steps}
    sent, back = rows[Offload], rows[Prefetch]
    assert (sent.stream, sent.start, sent.end) == ("cpu/to-host", 1.0, 3.5)
    assert (sent.memory, sent.live, sent.peak) == ("host/memory", 4, 4)
    waits = [step for step in found.steps if isinstance(step.action, Wait)]
    assert [(step.start, step.end) for step in waits] == [(2.0, 3.5), (5.5, 7.0)]
    assert {step.stream for step in waits} == {"cpu/compute"}
    assert (back.stream, back.start, back.end) == ("cpu/from-host", 4.5, 7.0)
    assert (back.memory, back.live) == ("cpu/memory", 16)
    assert (rows[FreeHostCopy].memory, rows[FreeHostCopy].live) == ("host/memory", 0)
    assert found.transfers == TransferTotals(
        offloaded_bytes=4, prefetched_bytes=4, host_peak=4, wait_seconds=3.0
    )
    assert (found.seconds, found.saved) == (8.0, 8)
    for bandwidth in (0.1, 100.0, float("inf")):
        other = played(away, with_fields(LINK, bandwidth=bandwidth))
        assert [step.live for step in other.steps] == [step.live for step in found.steps]
        assert other.peak == found.peak == 20


def test_a_transfer_takes_its_overhead_of_the_computations() -> None:
    away: Away = {1: [Offload(0)], 2: [Wait(0), Free(0)], 4: [Prefetch(0)], 6: COMES[1:]}
    dear = with_fields(LINK, overhead=0.25, overhead_per_byte=0.0625)
    found = played(away, dear)
    spans = [
        (step.start, step.end)
        for step in found.steps
        if isinstance(step.action, Offload | Prefetch | Wait)
    ]
    assert spans == [(1.5, 4.0), (2.5, 4.0), (5.5, 8.0), (6.5, 8.0)]
    assert found.transfers is not None and found.transfers.wait_seconds == 3.0
    assert (found.seconds, found.overhead) == (9.0, 1.0) and played(away).overhead == 0.0
    assert [step.live for step in found.steps] == [step.live for step in played(away).steps]


def test_without_transfers_nothing_changes() -> None:
    assert played({}) == played({}, None)
    assert played({}).transfers is None


def test_a_stream_does_one_transfer_at_a_time_and_a_shared_link_one_in_all() -> None:
    both: Away = {
        2: [Offload(0), Offload(1)],
        3: [Wait(0), Free(0), Prefetch(0), Wait(1), Wait(0), FreeHostCopy(0), FreeHostCopy(1)],
    }
    spans = [
        (step.start, step.end)
        for step in played(both).steps
        if isinstance(step.action, Offload | Prefetch)
    ]
    assert spans == [(2.0, 4.5), (4.5, 7.0), (4.5, 7.0)]
    shared = played(both, with_fields(LINK, shared=True)).steps
    [back] = [step for step in shared if isinstance(step.action, Prefetch)]
    assert (back.start, back.end) == (7.0, 9.5)


def test_the_step_ends_when_all_streams_are_through() -> None:
    assert played({8: [Offload(4), Wait(4), FreeHostCopy(4)]}).seconds == 7.5


def test_what_comes_back_is_read_once_it_is_there() -> None:
    refused({2: LEAVES}, r"op 5 .* reads value 0, which is not live")
    late: Away = {2: LEAVES, 6: [Prefetch(0)], 7: [Wait(0), FreeHostCopy(0)]}
    refused(late, r"op 5 .* reads value 0, which has not come back")


def test_what_is_on_its_way_is_not_freed_or_overwritten() -> None:
    refused({2: [Offload(0), Free(0)]}, "storage 0 goes while it is on its way")
    steps = schedule({4: [Offload(1)]})
    over = [ScheduleStep(Compute(4, in_place=1)) if s.action == Compute(4) else s for s in steps]
    with pytest.raises(ScheduleError, match="storage 1 goes while it is on its way"):
        simulate(*three_layers(), over, link=LINK)


def test_only_what_is_there_leaves() -> None:
    refused({0: [Offload(0)]}, "value 0 leaves, which is not live")
    refused({1: [Offload(1)]}, "value 1 leaves, which is not live")
    refused({2: [Offload(0), Offload(0)]}, "value 0 leaves while it is on its way")
    twice: list[Action] = [Offload(0), Wait(0), Offload(0)]
    refused({2: twice}, "value 0 leaves, of which there is a copy")


def test_what_others_hold_does_not_leave() -> None:
    refused({3: [Offload(2)]}, "value 2 leaves, but the caller holds it")
    refused({7: [Offload(5)]}, "the gradient in value 5 leaves")
    graph, _ = three_layers()
    owner = graph.gradients[0].value
    refused({3: [Offload(owner)]}, f"value {owner} leaves, which is there before the step")


def test_only_what_left_comes_back_and_once() -> None:
    refused({2: [Prefetch(0)]}, "value 0 comes back, of which there is no copy")
    refused({2: [Offload(0), Wait(0), Prefetch(0)]}, "value 0 comes back, which is there")
    refused({2: LEAVES, 4: [*COMES, Prefetch(0)]}, "value 0 comes back, of which there is no copy")
    graph, costs = three_layers(views=True)
    view = next(op.outputs[0] for op in graph.ops if graph.is_view(op) and op.inputs == [0])
    order = [op.id for op in graph.ops if not graph.is_view(op)]
    steps = ScheduleLowering(graph, build_planning_graph(graph, costs)).schedule(order, False)
    place = next(i for i, step in enumerate(steps) if isinstance(step.action, ComputeLoss))
    away = [*map(ScheduleStep, LEAVES), ScheduleStep(Prefetch(view))]
    with pytest.raises(ScheduleError, match=f"value {view} comes back, which is a view"):
        simulate(graph, costs, [*steps[:place], *away, *steps[place:]], link=LINK)


def test_only_what_is_on_its_way_is_waited_for() -> None:
    refused({2: [Wait(0)]}, "storage 0 is waited for, which is not on its way")
    refused({2: [Offload(0), Wait(0), Wait(0)]}, "storage 0 is waited for, which is not on")
    refused({2: [Offload(0)]}, "storage 0 goes while it is on its way")
    refused({9: [Offload(0)]}, "value 0 leaves, which is not live")


def test_copies_are_freed_once_and_in_the_end_all_of_them() -> None:
    refused({2: [FreeHostCopy(0)]}, "the copy of storage 0 is freed, which is not there")
    refused(
        {2: [Offload(0), FreeHostCopy(0)]}, "the copy of storage 0 is freed while it is on its way"
    )
    refused({2: [Offload(0), Wait(0)]}, r"the copies of the storages \[0\] are never freed")


def test_the_other_memory_has_an_end() -> None:
    two: list[Action] = [Offload(0), Offload(1), Wait(0), Wait(1), FreeHostCopy(0), FreeHostCopy(1)]
    assert played({3: two}, with_fields(LINK, room=8)).transfers == TransferTotals(8, 0, 8, 5.0)
    small = with_fields(LINK, room=7)
    refused({3: two}, "value 1 makes 8 bytes in host/memory, which has 7", small)


def test_transfers_take_a_link() -> None:
    away: Away = {2: LEAVES, 4: COMES}
    refused(away, "offload is not possible on one device without a link", None)
    refused(away, "offload takes a link that has no bandwidth", with_fields(LINK, bandwidth=0.0))
    refused({2: [Offload(6 + 4)]}, "there is no value 10")


def test_the_walk_says_what_comes_back() -> None:
    graph, _ = three_layers()
    walked = list(schedule_effects(graph, schedule({2: LEAVES, 4: COMES})))
    moved = [effect for effect in walked if effect.moves == 0]
    assert [type(effect.step.action) for effect in moved] == [
        Offload, Wait, Prefetch, Wait, FreeHostCopy,
    ]  # fmt: skip
    assert [effect.returns for effect in moved if effect.returns] == [[0]]
    assert [list(effect.reads) for effect in moved] == [[0], [], [], [], []]


def test_opening_adds_waits_views_and_frees_of_copies() -> None:
    for views in (False, True):
        graph, costs = three_layers(views)
        opener = ScheduleLowering(graph, build_planning_graph(graph, costs))
        ops = [node.op for node in opener.problem.nodes]
        first, second, third, loss, fifth, last = (Compute(op) for op in ops)
        forward: list[Action] = [first, Offload(0), second, Free(0), third, ComputeLoss(loss.op)]
        steps = opener.of_actions([*forward, fifth, Prefetch(0), last], in_place=False)
        kinds = [type(step.action).__name__ for step in steps if step.action not in (first,)]
        assert kinds.count("Wait") == 2 and kinds.count("FreeHostCopy") == 1
        place = [step.action for step in steps].index(Free(0))
        assert isinstance(steps[place - 1].action, Wait)
        found = simulate(graph, costs, steps, link=LINK)
        assert found.transfers == TransferTotals(4, 4, 4, found.transfers.wait_seconds)  # type: ignore[union-attr]
        kept = simulate(graph, costs, opener.schedule(ops, False))
        assert found.peak <= kept.peak and found.seconds >= kept.seconds
        assert len([s for s in steps if isinstance(s.action, Compute)]) == len(
            [s for s in opener.schedule(ops, False) if isinstance(s.action, Compute)]
        )
        with pytest.raises(ScheduleError, match="frees storage 0, which it has not sent"):
            opener.of_actions([first, Free(0), second], in_place=False)
        with pytest.raises(ScheduleError, match="which is added to it"):
            opener.of_actions([first, Offload(0), Wait(0)], in_place=False)
        with pytest.raises(ScheduleError, match="which the graph does not have"):
            opener.of_actions([first, Offload(99)], in_place=False)


def test_what_comes_back_has_the_views_that_it_had() -> None:
    graph, costs = graph_of(two_reads(), views=True, shared=True)
    opener = ScheduleLowering(graph, build_planning_graph(graph, costs))
    first, second, loss, back = (node.op for node in opener.problem.nodes)
    away: list[Action] = [Compute(first), Offload(0), Compute(second), Free(0), ComputeLoss(loss)]

    def views(steps: Sequence[ScheduleStep]) -> int:
        return sum(s.action.op in graph.view_ops() for s in steps if isinstance(s.action, Compute))

    returned = opener.of_actions([*away, Prefetch(0), Compute(back)], in_place=False)
    again = opener.schedule([first, second, loss, first, back], False)
    assert (views(returned), views(again)) == (2, 3)
    for steps in (returned, again):
        simulate(graph, costs, steps, link=LINK)
    place = [step.action for step in returned].index(Free(0)) + 1
    made = [ScheduleStep(Compute(first)), ScheduleStep(Free(0))]
    with pytest.raises(ScheduleError, match=r"reads value \d+, which is not live"):
        simulate(graph, costs, [*returned[:place], *made, *returned[place:]], link=LINK)


def two_reads() -> PlanningGraph:
    """An op whose output the next one reads, and a backward."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 4, [], [0], [], False, True),
        PlanningNode(1, "forward", 1.0, 4, [0], [1], [], False, True),
        PlanningNode(2, "loss", 0.0, 4, [1], [2], [], False, False),
        PlanningNode(3, "backward", 1.0, 4, [0, 2], [3], [], False, True),
    ]
    storages = [PlanningStorage(4, index, index in (1, 2), index == 3) for index in range(4)]
    return PlanningGraph(nodes, storages, 0)
