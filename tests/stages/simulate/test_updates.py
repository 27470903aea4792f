"""Updates in the simulator: on the device and in the offload target, and a test for each
refusal."""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any

import pytest

from tests.stages.simulate.test_transfers import Away, schedule, three_layers
from tightfit.schemas.actions import (
    AccumulateOnHost,
    Action,
    Free,
    FreeHostCopy,
    Offload,
    Prefetch,
    UpdateOnDevice,
    UpdateOnHost,
    Wait,
)
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import (
    LinkSpeed,
    OptimizerPlan,
    ParameterUpdateCost,
    SecondTierStates,
    parse_optimizer_plan,
)
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.simulate import SimulationResult, simulate
from tightfit.util.errors import ArtifactError, ScheduleError

LINK = HostLink(bandwidth=2.0, shared=False, room=100, device="cpu")
PARAMETER, GRADIENT, END, UPDATED = 6, 5, 10, 9
"""The parameter, 1 byte, its gradient, the end of the schedule, and where the gradient is whole."""
COST = ParameterUpdateCost("weight", (8,), 2.0, 3, 0, (5, 1), host_seconds=7.0)
OPTIMIZER = OptimizerPlan({PARAMETER: COST}, LinkSpeed.of(LINK), 4)
AWAY = with_fields(OPTIMIZER, offloaded=frozenset([PARAMETER]))
THERE = with_fields(AWAY, resident=AWAY.offloaded)
COMES: list[Action] = [Prefetch(PARAMETER), Wait(PARAMETER)]
SENT: list[Action] = [Offload(GRADIENT), Wait(GRADIENT), Free(GRADIENT)]
SETTLED: list[Action] = [Wait(GRADIENT), FreeHostCopy(GRADIENT)]


def graph_with_reader() -> Graph:
    """`three_layers`, whose op 2 reads the parameter."""
    graph, _ = three_layers()
    ops = list(graph.ops)
    ops[2] = with_fields(ops[2], inputs=[*ops[2].inputs, PARAMETER])
    return with_fields(graph, ops=ops)


def steps_with(*ending: Action, before: Away | None = None) -> list[ScheduleStep]:
    """The step in captured order with further actions, and some at its end."""
    return [*schedule(before or {}), *(ScheduleStep(action) for action in ending)]


def played(
    *ending: Action,
    updates: OptimizerPlan | None = OPTIMIZER,
    before: Away | None = None,
    link: HostLink | None = LINK,
    reader: bool = False,
) -> SimulationResult:
    graph, costs = three_layers()
    graph = graph_with_reader() if reader else graph
    return simulate(graph, costs, steps_with(*ending, before=before), link=link, updates=updates)


def refused(match: str, *ending: Action, **said: object) -> None:
    with pytest.raises(ScheduleError, match=match):
        played(*ending, **said)  # type: ignore[arg-type]


def test_an_update_on_the_device_uses_the_gradient_up() -> None:
    found = played(UpdateOnDevice(PARAMETER))
    last = found.steps[-1]
    assert (last.stream, last.start, last.end) == ("cpu/compute", 5.0, 7.0)
    assert (last.live, last.peak) == (8, 15)
    assert found.transfers is not None and found.transfers.host_peak == 8


def test_states_that_pass_take_their_overhead_of_the_computations() -> None:
    dear = with_fields(OPTIMIZER.speed, overhead=0.25, overhead_per_byte=0.0625)
    plain, found = (
        played(UpdateOnDevice(PARAMETER), updates=with_fields(OPTIMIZER, speed=speed))
        for speed in (OPTIMIZER.speed, dear)
    )
    assert found.overhead == 2 * 0.75 and plain.overhead == 0.0
    # The first states come ahead of the step, and go back behind it.
    assert (plain.steps[-1].end, found.steps[-1].end) == (7.0, 7.0 + 2 * 0.75)
    assert (plain.seconds, found.seconds) == (11.0, 12.5)
    assert parse_optimizer_plan(with_fields(OPTIMIZER, speed=dear).text(), "file").speed == dear


def test_an_update_in_the_other_memory_has_a_stream_of_its_own() -> None:
    found = played(*SENT, UpdateOnHost(PARAMETER), *SETTLED, updates=AWAY)
    rows = {type(step.action): step for step in found.steps}
    update = rows[UpdateOnHost]
    assert (update.stream, update.start, update.end) == ("host/compute", 7.0, 14.0)
    assert (update.memory, update.live) == ("host/memory", 1 + 8 + 4)
    assert found.seconds == 14.0 and found.steps[-3].live == 13
    assert (rows[FreeHostCopy].live, rows[FreeHostCopy].memory) == (9, "host/memory")
    assert [s.live for s in found.steps if s.memory == "cpu/memory"][-1] == 8


def test_a_parameter_of_the_other_memory_is_brought_dropped_and_sent_back() -> None:
    before: Away = {2: COMES, 3: [Free(PARAMETER)], UPDATED: COMES}
    ending: list[Action] = [UpdateOnDevice(PARAMETER), Offload(PARAMETER), Wait(PARAMETER)]
    found = played(*ending, Free(PARAMETER), updates=AWAY, before=before, reader=True)
    sizes = [step.live for step in found.steps if isinstance(step.action, Prefetch | Free)]
    assert sizes[:2] == [9, 12]
    assert found.transfers is not None
    assert (found.transfers.offloaded_bytes, found.transfers.prefetched_bytes) == (8 + 1, 8 + 2)
    there = played(*SENT, UpdateOnHost(PARAMETER), *SETTLED, Free(PARAMETER), *COMES, updates=THERE)
    come = [step for step in there.steps if isinstance(step.action, Prefetch)]
    assert come[0].start == 14.0 and there.steps[0].live == 5


def test_updates_that_could_not_be() -> None:
    refused("which no optimizer has", UpdateOnDevice(PARAMETER), updates=None)
    refused(
        "which no optimizer has",
        UpdateOnDevice(PARAMETER),
        updates=with_fields(OPTIMIZER, costs={}),
    )
    refused("updated again", UpdateOnDevice(PARAMETER), UpdateOnDevice(PARAMETER))
    refused("before its gradient is whole", before={UPDATED: [UpdateOnDevice(PARAMETER)]})
    refused("are never updated")
    refused("value 0 is updated, which has no gradient", UpdateOnDevice(0))
    refused(
        "gradient is not on the device", *SENT, UpdateOnDevice(PARAMETER), FreeHostCopy(GRADIENT)
    )


def test_parameters_that_are_not_where_they_are_used() -> None:
    refused("reads value 6, which is not live", updates=AWAY, reader=True)
    refused("updated, which is not on the device", UpdateOnDevice(PARAMETER), updates=AWAY)
    refused("not on the device", Prefetch(PARAMETER), UpdateOnDevice(PARAMETER), updates=AWAY)
    on_its_way: Away = {UPDATED: COMES}
    again: list[Action] = [UpdateOnDevice(PARAMETER), Offload(PARAMETER)]
    refused("still on their way", *again, updates=THERE)
    refused(
        "older|before it was sent back", UpdateOnDevice(PARAMETER), Free(PARAMETER), updates=THERE
    )
    refused("not where they were", *again, Wait(PARAMETER), updates=AWAY, before=on_its_way)
    refused("comes back, which is there", Prefetch(PARAMETER), updates=THERE)
    refused("whose copy is as new", Offload(PARAMETER), updates=THERE)
    refused("which is there before", Offload(PARAMETER))


def test_a_parameter_that_leaves_is_sent_back_once_it_is_updated() -> None:
    left: Away = {1: [Free(PARAMETER)], UPDATED: COMES}
    refused("are never sent back", UpdateOnDevice(PARAMETER), updates=THERE, before=left)
    played(UpdateOnDevice(PARAMETER), updates=THERE)
    ending: list[Action] = [*SENT, UpdateOnHost(PARAMETER), *SETTLED]
    refused("are older than in their memory", *ending, updates=THERE)
    twice: list[Action] = [UpdateOnDevice(PARAMETER), Offload(PARAMETER), Offload(PARAMETER)]
    refused("whose copy is as new", *twice, updates=THERE)


def test_updates_in_the_other_memory_that_could_not_be() -> None:
    update = UpdateOnHost(PARAMETER)
    refused("and lives here", *SENT, update, FreeHostCopy(GRADIENT))
    here = with_fields(AWAY, on_device=AWAY.offloaded)
    refused("its states are here", *SENT, update, *SETTLED, updates=here)
    nobody = with_fields(AWAY, costs={PARAMETER: with_fields(COST, host_seconds=float("inf"))})
    refused("where nothing computes", *SENT, update, *SETTLED, updates=nobody)
    refused("its gradient is not there", update, updates=AWAY)
    refused("gradient is on its way", Offload(GRADIENT), update, updates=AWAY)
    refused("is freed while it is on its way", *SENT, update, FreeHostCopy(GRADIENT), updates=AWAY)
    refused("the gradient in value 5 leaves", *SENT, update, updates=None)
    refused("the gradient in value 5 is freed", Free(GRADIENT), updates=AWAY)
    early: Away = {UPDATED: [Offload(GRADIENT)]}
    refused("the gradient in value 5 leaves", update, updates=AWAY, before=early)
    refused("are never freed", *SENT, update, updates=AWAY)
    refused(r"the storages \[\d+\] are never freed", *SENT[:2], update, *SETTLED, updates=AWAY)


def test_microbatches_add_their_gradients_up_and_the_last_one_updates() -> None:
    cost = with_fields(COST, add_seconds=3.0)
    adds = with_fields(AWAY, costs={PARAMETER: cost}, accumulates=True)
    found = played(*SENT, AccumulateOnHost(PARAMETER), *SETTLED, updates=adds)
    step = next(step for step in found.steps if isinstance(step.action, AccumulateOnHost))
    assert (step.stream, step.start, step.end, step.live) == (
        "host/compute",
        7.0,
        10.0,
        1 + 8 + 1 + 4,
    )
    last = with_fields(adds, accumulates=False, has_sums=True)
    found = played(*SENT, UpdateOnHost(PARAMETER), *SETTLED, updates=last)
    assert found.seconds == 7.0 + 3.0 + 7.0
    refused("accumulate_on_host of 6 in a microbatch that is the last", *SENT,
            AccumulateOnHost(PARAMETER), updates=last)  # fmt: skip
    for update in (UpdateOnHost(PARAMETER), UpdateOnDevice(PARAMETER)):
        refused("in a microbatch that is not the last", *SENT, update, updates=adds)
    refused("are never updated", updates=adds)
    unfreed: list[Action] = [*SENT[:2], AccumulateOnHost(PARAMETER), *SETTLED]
    refused(r"the storages \[\d+\] are never freed", *unfreed, updates=adds)
    nobody = with_fields(adds, costs={PARAMETER: COST})
    refused("where nothing computes", *SENT, AccumulateOnHost(PARAMETER), *SETTLED, updates=nobody)
    there = with_fields(adds, resident=adds.offloaded)
    brought = played(*SENT, AccumulateOnHost(PARAMETER), *SETTLED, updates=there)
    assert brought.steps[0].live == 5
    assert parse_optimizer_plan(adds.text(), "it") == adds
    kept = with_fields(OPTIMIZER, accumulates=True)
    assert played(updates=kept).steps[-1].live == 8
    assert played(updates=with_fields(kept, first=True)).steps[-1].live == 12


def test_a_memory_that_is_too_small_and_a_link_that_is_none() -> None:
    refused("take 8 bytes in host/memory, which has 7", link=with_fields(LINK, room=7))
    refused("take 9 bytes in host/memory", updates=AWAY, link=with_fields(LINK, room=8))
    refused("makes 13 bytes in host/memory", *SENT, updates=AWAY, link=with_fields(LINK, room=12))
    refused("to which there is no link", UpdateOnDevice(PARAMETER), link=None)
    none = with_fields(OPTIMIZER, speed=LinkSpeed(0.0, 0.0, (0.0, 0.0), 0.0))
    refused("the link has no bandwidth", UpdateOnDevice(PARAMETER), updates=none)
    here = with_fields(none, on_device=frozenset([PARAMETER]))
    assert played(UpdateOnDevice(PARAMETER), updates=here, link=None).seconds == 7.0


DISK = HostLink(bandwidth=2.0, shared=False, room=8, device="host", to="disk")
FAR = SecondTierStates(DISK, frozenset([PARAMETER]), 4)
BEYOND = with_fields(AWAY, second_tier=FAR)
UPDATE: list[Action] = [*SENT, UpdateOnHost(PARAMETER), *SETTLED]


def beyond(**link: Any) -> OptimizerPlan:
    return with_fields(BEYOND, second_tier=with_fields(FAR, link=with_fields(DISK, **link)))


def test_states_of_a_third_memory_pass_through_buffers_of_the_other_one() -> None:
    """They come while the step computes, and go back when the update is done."""
    found = played(*UPDATE, updates=BEYOND)
    assert found.passing == [("host/from-disk", 0.0, 4.0), ("host/to-disk", 14.0, 18.0)]
    assert found.seconds == 18.0
    assert found.transfers is not None and found.transfers.host_peak == 1 + 4 * 8 + 4
    update = next(step for step in found.steps if isinstance(step.action, UpdateOnHost))
    assert (update.stream, update.start, update.end) == ("host/compute", 7.0, 14.0)


def test_an_update_waits_for_states_that_come_slowly() -> None:
    found = played(*UPDATE, updates=beyond(bandwidth=0.5))
    assert found.passing == [("host/from-disk", 0.0, 16.0), ("host/to-disk", 23.0, 39.0)]
    first = played(*UPDATE, updates=with_fields(beyond(bandwidth=0.5), first=True))
    assert first.passing == [("host/to-disk", 14.0, 30.0)]
    halves = with_fields(COST, pieces=(4, 4))
    pieces = played(*UPDATE, updates=with_fields(beyond(bandwidth=0.5), costs={PARAMETER: halves}))
    assert [begin for stream, begin, _ in pieces.passing if stream == "host/to-disk"] == [
        11.5,
        19.5,
    ]
    assert pieces.seconds == 27.5
    summed = with_fields(halves, add_seconds=3.0)
    last = with_fields(beyond(bandwidth=0.5), costs={PARAMETER: summed}, has_sums=True)
    assert played(*UPDATE, updates=last).seconds == 29.5


def test_microbatches_that_only_add_bring_no_states() -> None:
    adds = with_fields(
        BEYOND, costs={PARAMETER: with_fields(COST, add_seconds=3.0)}, accumulates=True
    )
    found = played(*SENT, AccumulateOnHost(PARAMETER), *SETTLED, updates=adds)
    assert not found.passing and found.seconds == 10.0


def test_a_third_memory_that_could_not_be() -> None:
    refused("take 8 bytes in disk/memory, which has 7", *UPDATE, updates=beyond(room=7))
    refused("in disk/memory, and its link has no band", *UPDATE, updates=beyond(bandwidth=0.0))
    small = with_fields(LINK, room=32)
    refused("take 33 bytes in host/memory", *UPDATE, updates=BEYOND, link=small)
    elsewhere = beyond(device="x")
    refused("in disk/memory, to which no link leads", *UPDATE, updates=elsewhere)
    here = with_fields(BEYOND, resident=AWAY.offloaded)
    refused("on the device, and its states are not", UpdateOnDevice(PARAMETER), updates=here)


def test_an_optimizer_is_written_and_read() -> None:
    on_device = with_fields(OPTIMIZER, on_device=frozenset([PARAMETER]))
    for updates in (OPTIMIZER, THERE, BEYOND, on_device):
        assert parse_optimizer_plan(updates.text(), "it") == updates
    good = THERE.text()
    bad = [("2.0", '"a"'), ('"resident": [6]', '"x": 1'), ('"offloaded": [6]', '"offloaded": []')]
    wrong = [good.replace(*each) for each in (*bad, ("[8]", "[-8]"))]
    far = (('{"buffers": 4', '{"buffers": 0'), ('"values": [6]', '"values": [7]'))
    wrong += [BEYOND.text().replace(*each) for each in far]
    for text in ("", "[]", "{}", *wrong):
        with pytest.raises(ArtifactError, match="it: what it says of an optimizer is none"):
            parse_optimizer_plan(text, "it")
