"""Streams of a chain with a link, read back: what the chain simulator says, and each refusal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from tests.stages.combine.chain_offload.offload_chains import offload_chains, plan_offload_chain
from tightfit.schemas.link import HostLink
from tightfit.schemas.operation_timeline import TimedOperation
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.simulate.stream_check import StreamTotals, check_streams
from tightfit.util.errors import ScheduleError


@settings(max_examples=40, deadline=None)
@given(offload_chains())
def test_streams_come_to_what_the_referee_of_chains_says(
    case: tuple[ChainProblem, HostLink, int],
) -> None:
    ways, link, budget = case
    plan = plan_offload_chain("offload_greedy", ways, link).within(budget)
    if plan is not None:
        played = plan.simulation
        most = max(step.live for step in played.steps)
        figures = (played.seconds, played.waited, most, played.host_peak, played.left)
        assert check_streams(played.steps) == StreamTotals(*figures, played.returned)


def streams() -> list[TimedOperation]:
    """Position 1, of 4 bytes, leaves and comes back around the loss, each way in a second."""

    def row(
        kind: Any, block: int, stream: str, start: float, live: int, host: int
    ) -> TimedOperation:
        return TimedOperation(
            ChainOperation(kind, block), f"cpu/{stream}", start, start + 1.0, 0.0, live, host
        )

    return [
        row("F_all", 1, "compute", 0.0, 4, 0),
        row("offload_all", 1, "to-host", 1.0, 4, 4),
        row("free_all", 1, "compute", 1.0, 0, 4),
        row("loss", 2, "compute", 2.0, 1, 4),
        row("prefetch_all", 1, "from-host", 3.0, 5, 4),
        row("B", 1, "compute", 4.0, 0, 0),
    ]


def test_plain_streams_are_added_up() -> None:
    assert check_streams(streams()) == StreamTotals(5.0, 0.0, 5, 4, 4, 4)
    waiting = streams()
    waiting[3] = replace(waiting[3], wait_seconds=0.5)
    assert check_streams(waiting).waited == 0.5
    soon = streams()
    soon[4] = replace(soon[4], start=2.0)
    assert check_streams(soon) == check_streams(streams())
    assert check_streams([]) == StreamTotals(0.0, 0.0, 0, 0, 0, 0)
    kept, _, freed, *_ = streams()
    alone = [replace(kept, end=0.25), replace(freed, start=0.25, end=0.25, host_bytes=0)]
    assert check_streams(alone) == StreamTotals(0.25, 0.0, 4, 0, 0, 0)


@pytest.mark.parametrize(
    ("place", "changes", "sentence"),
    [
        (0, {"stream": "cpu/to-host"}, "is in cpu/to-host, not in compute"),
        (0, {"stream": "compute"}, "is in compute, not in compute"),
        (1, {"stream": "cpu/from-host"}, "is in cpu/from-host, not in to-"),
        (4, {"stream": "cpu/compute"}, "is in cpu/compute, not in from-"),
        (3, {"start": 1.5}, r"step 3 \(loss\) begins before its stream is free"),
        (1, {"live": 3}, "changes the memory of the device by -1 bytes"),
        (1, {"host_bytes": -4}, "takes 4 bytes from the host"),
        (2, {"end": 1.5}, "frees what is still on its way"),
        (2, {"live": 1}, "frees 3 bytes where 4 left"),
        (3, {"host_bytes": 5}, "brings 1 bytes to the host"),
        (4, {"operation": ChainOperation("prefetch_all", 2)}, "brings back what did not leave"),
        (4, {"start": 1.0}, "begins before it is on the host"),
        (4, {"live": 6}, "takes 5 bytes where 4 left"),
        (4, {"host_bytes": 3}, "changes the memory of the host by -1 bytes"),
        (5, {"start": 3.5}, "reads what has not come back"),
    ],
)
def test_streams_that_cannot_be_are_refused(
    place: int, changes: dict[str, Any], sentence: str
) -> None:
    steps = streams()
    steps[place] = replace(steps[place], **changes)
    with pytest.raises(ScheduleError, match=sentence):
        check_streams(steps)
