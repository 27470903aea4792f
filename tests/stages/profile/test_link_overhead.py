"""What transfers take of a loop that computes: no more than it takes longer, and than processors
work for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tightfit.stages.profile import link_overhead
from tightfit.stages.profile.link_overhead import (
    LONG_TRANSFER_BYTES,
    LOOP_PARTS,
    SHORT_TRANSFER_BYTES,
    _LoopTiming,
    measure_transfer_overhead,
)


def test_what_a_loop_takes_longer_is_no_more_than_processors_worked() -> None:
    alone, busy = _LoopTiming(1.0, 0.0), _LoopTiming(1.5, 0.25)
    assert busy.excess_over(alone) == 0.25 and _LoopTiming(1.5, 2.0).excess_over(alone) == 0.5
    assert (
        _LoopTiming(0.5, 2.0).excess_over(alone) == 0.0
        and _LoopTiming(1.5, 0.1).excess_over(busy) == 0.0
    )


@pytest.mark.parametrize("longer", [1e-9, 1e3], ids=["by the clock", "by the work"])
def test_transfers_are_what_the_loop_takes_longer(
    longer: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that says of what size the transfers are: one that tells more than processors
    can have worked, as beside other work, is not believed."""
    sizes: list[int] = []

    class Clock:
        lost = 0.0

        def __call__(self, call: Callable[[], None]) -> float:
            call()
            return {
                0: 1.0,
                SHORT_TRANSFER_BYTES: 1.0 + longer,
                LONG_TRANSFER_BYTES: 1.0 + 3 * longer,
            }[sizes[-1] if sizes else 0]

    plain = link_overhead._ComputeLoop.run

    def run(loop: link_overhead._ComputeLoop, size: int) -> _LoopTiming:
        sizes.append(size)
        return plain(loop, size)

    monkeypatch.setattr(link_overhead, "HostClock", Clock)
    monkeypatch.setattr(link_overhead._ComputeLoop, "run", run)
    found = measure_transfer_overhead(torch.device("cpu"), str(tmp_path), lambda size: 0.0)
    transfers = 2 * LOOP_PARTS - 1
    assert sizes.count(0) == sizes.count(SHORT_TRANSFER_BYTES) == link_overhead.ROUNDS and not [
        *tmp_path.iterdir()
    ]
    if longer < 1.0:
        assert found.transfer == pytest.approx(longer / transfers, rel=1e-3)
    else:
        assert 0.0 < found.transfer < 0.1 and 0.0 <= found.byte < 0.1 / SHORT_TRANSFER_BYTES


def test_where_the_work_of_a_thread_is_not_counted_the_clock_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = _LoopTiming(1.5, math.inf)
    assert (
        unknown.excess_over(_LoopTiming(1.0, 0.0)) == 0.5
        and unknown.excess_over(_LoopTiming(1.2, math.inf)) > 0.2
    )
    monkeypatch.delattr(link_overhead.time, "pthread_getcpuclockid")
    found = measure_transfer_overhead(torch.device("cpu"), str(tmp_path), lambda size: 0.0)
    assert 0.0 <= found.transfer < math.inf and 0.0 <= found.byte < math.inf


@pytest.mark.parametrize("spare", [True, False])
def test_a_delay_is_that_of_transfers_where_no_processor_is_left(
    spare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work delays the loop as well: no more than what threads worked for transfers is
    theirs."""

    class Clock:
        lost = 10.0

        def __call__(self, call: Callable[[], None]) -> float:
            call()
            return 1.0

    monkeypatch.setattr(link_overhead, "HostClock", Clock)
    monkeypatch.setattr(link_overhead, "has_spare_core", lambda device: spare)
    found = measure_transfer_overhead(torch.device("cpu"), str(tmp_path), lambda size: 0.0)
    assert (found.transfer == 0.0) is spare and found.transfer < 0.1
