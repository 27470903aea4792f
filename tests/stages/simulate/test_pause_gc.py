"""Simulations leave Python's garbage collector as they found it."""

from __future__ import annotations

import gc

import pytest

from tightfit.stages.simulate.simulate import pause_gc
from tightfit.util.errors import ScheduleError


@pause_gc()
def collects(error: Exception | None = None) -> bool:
    if error is not None:
        raise error
    return gc.isenabled()


@pytest.mark.parametrize("at_work", [True, False])
def test_the_collector_rests_within_and_is_afterwards_as_it_was(at_work: bool) -> None:
    before = gc.isenabled()
    (gc.enable if at_work else gc.disable)()
    try:
        assert not collects()
        assert gc.isenabled() == at_work
        with pytest.raises(ScheduleError):
            collects(ScheduleError("no such luck"))
        assert gc.isenabled() == at_work
    finally:
        (gc.enable if before else gc.disable)()
