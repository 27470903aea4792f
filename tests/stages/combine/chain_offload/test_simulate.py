"""The simulator of sequences with transfers: what it refuses, and when streams wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.link import HostLink
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.chain_offload.planner import load_planner
from tightfit.stages.combine.chain_offload.simulate import (
    ChainOffloadSimulation,
    simulate_chain_offload,
)
from tightfit.util.errors import ConfigError, ScheduleError

LINKS = build_chain_problem(
    Chain(
        [
            ChainPosition(1, 1.0, 2.0, 4, 6, 4, 0, 0, 0, 0, "one"),
            ChainPosition(2, 1.0, 2.0, 2, 5, 2, 0, 0, 0, 0, "two"),
            ChainPosition(3, 1.0, 1.0, 0, 1, 0, 0, 0, 0, 0, "loss"),
        ],
        3,
        3,
    )
)
LINK = HostLink(2.0, 0.5, False)
GOOD = (
    "offload 0, F_all 1, offload_all 1, F_all 2, free 0, free_all 1, loss 3, prefetch_all 1, B 2, "
    "prefetch 0, B 1"
)


def played(words: str, link: HostLink = LINK) -> ChainOffloadSimulation:
    """A sequence that is written as its operations are read aloud."""
    steps = [word.strip().split() for word in words.split(",")]
    sequence = [ChainOperation(kind, int(position)) for kind, position in steps]  # type: ignore[arg-type]
    return simulate_chain_offload(LINKS, link, sequence)


def test_streams_wait_where_the_order_has_them_wait() -> None:
    found = played(GOOD)
    steps = {str(step.operation): step for step in found.steps}
    assert (steps["offload 0"].start, steps["offload 0"].end) == (0.0, 2.0)
    assert (steps["offload_all 1"].start, steps["offload_all 1"].end) == (2.0, 5.5)
    assert steps["offload_all 1"].wait_seconds == 1.0
    assert (steps["free_all 1"].start, steps["free_all 1"].end) == (2.0, 5.5)
    assert steps["loss"].end == 7.5
    assert (steps["prefetch_all 1"].start, steps["prefetch_all 1"].end) == (7.5, 11.0)
    assert (steps["B 2"].start, steps["B 2"].wait_seconds) == (11.0, 3.5)
    assert (steps["prefetch 0"].start, steps["prefetch 0"].end) == (13.0, 15.0)
    assert found.seconds == 17.0
    assert found.waited == 3.5 + 3.5 + 2.0
    assert (found.left, found.returned, found.host_peak) == (9, 9, 9)
    assert found.recomputed == 0


def test_a_transfer_takes_its_overhead_of_the_computations() -> None:
    found = played(GOOD, replace(LINK, overhead=0.25, overhead_per_byte=0.0))
    steps = {str(step.operation): step for step in found.steps}
    assert (steps["offload 0"].start, steps["offload 0"].end) == (0.25, 2.25)
    assert (steps["F_all 1"].start, steps["F_all 1"].wait_seconds) == (0.25, 0.0)
    assert (steps["offload_all 1"].start, steps["offload_all 1"].wait_seconds) == (2.25, 0.75)
    assert (steps["free_all 1"].start, steps["free_all 1"].end) == (2.5, 5.75)
    assert (found.overhead, found.waited) == (1.0, 3.25 + 3.5 + 2.0)
    assert found.seconds == 17.75
    assert played(GOOD).overhead == 0.0


def test_memory_follows_from_the_order_and_not_from_the_speed() -> None:
    slow, fast = played(GOOD), played(GOOD, HostLink(1e9))
    assert fast.seconds < slow.seconds
    assert (fast.peak, fast.host_peak) == (slow.peak, slow.host_peak)
    assert [step.live for step in fast.steps] == [step.live for step in slow.steps]


def test_a_shared_link_does_one_transfer_at_a_time() -> None:
    words = "F_all 1, offload_all 1, F_all 2, free_all 1, offload_all 2, prefetch_all 1, free_all 2"
    words += ", prefetch_all 2, loss 3, B 2, B 1"
    apart, together = played(words), played(words, HostLink(2.0, 0.5, True))
    assert together.seconds > apart.seconds
    assert together.peak == apart.peak


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("offload 0, offload 0", "sends what is on the host already"),
        ("offload_all 1", "sends what is not there"),
        ("prefetch 0", "brings back what is not on the host"),
        ("offload 0, prefetch 0", "brings back what is there"),
        ("offload 9", "is on no position of the chain"),
        ("free 0", "frees the chain's input, which did not leave"),
        ("free_all 1", "frees what is not there"),
        ("offload 0, free 0, F_all 1", "reads an input that is on the host"),
        ("F_all 2", "reads an input that is not there"),
        ("F_ck 1, offload 1, F_none 2", "ends what leaves and was not freed"),
        (GOOD.replace("prefetch_all 1, ", ""), "reads an input that is on the host"),
        (GOOD.removesuffix(", B 1"), "the sequence ends before B 1"),
        ("F_all 1, F_all 2, offload_all 2, loss 3, B 2", "ends what leaves and was not freed"),
        ("F_all 1, loss 3", "reads an input that is not there"),
    ],
)
def test_what_could_not_run_is_refused(words: str, sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        played(words)


def test_a_link_without_bandwidth_takes_nothing() -> None:
    with pytest.raises(
        ScheduleError, match=r"step 0 .offload 0. takes a link that has no bandwidth"
    ):
        played(GOOD, HostLink(0.0))


def test_an_unknown_planner_is_named_with_those_known() -> None:
    with pytest.raises(ConfigError, match=r"--strategy magic.*offload_greedy or .* or opportunist"):
        load_planner("magic")
