"""States in a second offload tier: which, and plans that the simulator plays within the bytes of
all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.optimizer_offload.test_search import GRAPH, check, files, machine, task
from tests.stages.report.cases import WEIGHT
from tightfit.__main__ import main
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import schedule_optimizer_plan
from tightfit.stages.combine.optimizer_offload.command import plan_step
from tightfit.stages.combine.optimizer_offload.min_memory import BudgetTooSmallError
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch, OffloadSearchResult
from tightfit.stages.combine.optimizer_offload.state_placement import (
    resident_parameter_problems,
    second_tier_problems,
)
from tightfit.util.errors import ConfigError

__all__ = ["files"]

DISK = HostLink(5e8, 1e-5, False, 1e9, "host", to="disk")
STATES = sum(cost.states for cost in task(10**9).updates.values())
PARAMETERS = 6 * WEIGHT
"""Bytes of the states and of the parameters that live in the offload target."""


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """Of several pieces a parameter, of which buffers hold four."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tightfit.stages.combine.optimizer_offload.optimizer_in_backward.SPEC_PIECE_BYTES",
            WEIGHT // 5,
        )
        yield


def test_what_has_room_in_the_other_memory_stays_there() -> None:
    roomy = task(7_000_000)
    assert next(second_tier_problems(roomy, DISK)).far is None
    with_disk = plan_step(roomy, DISK)
    assert with_disk[0].far is None
    assert with_disk[1].simulation.steps == plan_step(roomy, None)[1].simulation.steps
    assert with_disk[1].seconds <= OffloadSearch(roomy).best().seconds


@pytest.mark.sample(3)
@pytest.mark.parametrize("short", [1, STATES // 3, STATES * 2 // 3])
def test_states_without_room_are_in_the_third_memory(short: int) -> None:
    tight = task(9_000_000, room=PARAMETERS + STATES - short)
    with pytest.raises(ConfigError, match="bytes in host/memory, which has"):
        plan_step(tight, None)
    try:
        own, found = plan_step(tight, DISK)
    except ConfigError:
        assert short == STATES * 2 // 3, "staging and gradients need some of the room"
        return
    check(own, found)
    assert own.far is not None and own.far.states(own.updates) >= short
    assert found.simulation.transfers is not None
    assert found.simulation.transfers.host_peak <= tight.link.room
    streams = {stream for stream, *_ in found.simulation.passing}
    assert streams >= {"host/from-disk", "host/to-disk"}


@pytest.mark.long
def test_a_budget_too_small_names_the_least_that_states_behind_allow() -> None:
    tight = task(9_000_000, room=PARAMETERS + STATES * 2 // 3)
    least, _ = plan_step(tight, DISK, "min")
    assert least.far is not None
    with pytest.raises(BudgetTooSmallError, match="smallest budget known to work") as refused:
        plan_step(tight, DISK, str(least.budget - 1000))
    assert refused.value.smallest == least.budget


@pytest.mark.long
@settings(max_examples=5, deadline=None)
@given(
    share=st.floats(0.3, 1.2),
    bandwidth=st.sampled_from([1e7, 5e8, float("inf")]),
    shared=st.booleans(),
    microbatches=st.sampled_from([1, 2]),
    room=st.sampled_from([STATES // 2, 1e9]),
)
def test_the_referee_plays_every_plan(
    share: float, bandwidth: float, shared: bool, microbatches: int, room: float
) -> None:
    sums = PARAMETERS if microbatches > 1 else 0
    size = PARAMETERS + sums + int(share * STATES) + 1_000_000
    tight = task(12_000_000, room=size, microbatches=microbatches)
    disk = replace(DISK, bandwidth=bandwidth, shared=shared, room=room)
    try:
        own, found = plan_step(tight, disk)
    except ConfigError as error:
        assert str(error)
        return
    check(own, found)
    states = own.far.states(own.updates) if own.far else 0
    assert states <= room


@pytest.mark.long
def test_a_slower_disk_is_never_faster() -> None:
    tight = task(9_000_000, room=PARAMETERS + STATES * 2 // 3)
    fast, slow = (plan_step(tight, replace(DISK, bandwidth=b))[1].seconds for b in (5e9, 1e7))
    assert fast < slow


@pytest.mark.long
def test_parameters_stay_with_their_states_where_the_same_search_finds_that_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tight, slow = task(9_000_000, room=PARAMETERS + STATES * 2 // 3), replace(DISK, bandwidth=1e7)
    improved, gone_on = OffloadSearch.improve, []

    def counted(own: OffloadSearch, best: OffloadSearchResult) -> OffloadSearchResult:
        gone_on.append(own.task)
        return improved(own, best)

    monkeypatch.setattr(OffloadSearch, "improve", counted)
    own, found = plan_step(tight, slow)
    check(own, found)
    assert (
        gone_on == [own]
        and own.unrestricted_problem is not None
        and own.unrestricted_problem.far is not None
    )
    assert len(own.remote) < len(own.unrestricted_problem.remote)
    less, more = (
        each.far.states(each.updates) if each.far else 0 for each in (own, own.unrestricted_problem)
    )
    assert less < more and found.seconds < OffloadSearch(own.unrestricted_problem).best().seconds
    assert next(resident_parameter_problems(replace(own, far=None)), None) is None


def test_where_the_third_memory_is_small_parameters_stay_with_their_states() -> None:
    tight = task(9_000_000, room=PARAMETERS + STATES * 2 // 3)
    most = next(second_tier_problems(tight, DISK)).far
    assert most is not None
    room = most.states(tight.updates) - 1
    own, found = plan_step(tight, replace(DISK, room=room))
    check(own, found)
    assert (
        own.unrestricted_problem is not None
        and own.unrestricted_problem.far is not None
        and own.unrestricted_problem.unrestricted_problem is None
    )
    assert own.far is None or own.far.states(own.updates) <= room


def test_what_cannot_be_is_told_in_one_sentence() -> None:
    crowded = r"^parameters and the buffers that states .* take .* and what moves takes more$"
    with pytest.raises(ConfigError, match=crowded):
        plan_step(task(9_000_000, room=PARAMETERS), DISK)
    most, least = PARAMETERS + STATES - 1, PARAMETERS + STATES // 4
    little = "states take .* in disk/memory, which has 5, since host/memory has no room"
    for words, disk, host, room in (
        (little, replace(DISK, room=5), 1e9, least),
        ("between host and disk has no bandwidth", replace(DISK, bandwidth=0), 1e9, most),
        ("nothing computes beside host, where states of disk", DISK, None, most),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_step(task(9_000_000, room=room, host=host), disk)


def test_the_command_plans_with_a_third_memory(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--graph", str(files / "graph.arrow"), "--costs", str(files / "costs.arrow")]
    path = machine(files, memory=PARAMETERS + STATES // 2)
    document = json.loads(path.read_text())
    document["memories"].append({"name": "disk", "memory": 10**12})
    document["links"].append({"between": ["disk", "host"], "bandwidth": 5e8})
    path = files / "three.json"
    path.write_text(json.dumps(document))
    given += ["--machine", str(path), "--out", str(files / "far"), "--budget", "9MB"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1)
        assert main(["optimizer-offload", *given]) == 0
    updates = schedule_optimizer_plan(files / "far/schedule.arrow")
    assert updates is not None and updates.second_tier is not None
    assert updates.host_bytes(GRAPH) <= PARAMETERS + STATES // 2
    states = updates.second_tier.states(updates.costs)
    assert f"and {states:,} in disk/memory" in read_plan(files / "far/plan.json").message
    tape, more = {"name": "tape", "memory": 10**12}, document["links"]
    document["memories"].append(tape)
    for link, words in (
        (["tape", "host"], "three.json: disk and tape are linked with host, and one memory behind"),
        (["tape", "disk"], "three.json: tape would not be used: a step takes host and disk, which"),
        (["disk", "host"], "three.json: has several links between host and disk"),
    ):
        document["links"] = [*more, {"between": link, "bandwidth": 5e8}]
        path.write_text(json.dumps(document))
        assert main(["optimizer-offload", *given]) == 1
        assert words in capsys.readouterr().err
    document["memories"], document["links"] = [document["memories"][0], tape], more[:1]
    path.write_text(json.dumps(document))
    assert main(["optimizer-offload", *given]) == 1
    words = 'leave the rest out of a copy of it, or add "links": [{"between": ["host", "tape"]'
    assert words in capsys.readouterr().err
