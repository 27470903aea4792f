"""Steps are timed by the processor, beside those of the model in a process of its own where other
work goes on."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tightfit.schemas.costs import ProfileDevice
from tightfit.schemas.measurement import CPU_APART, CPU_IN_TURNS
from tightfit.schemas.reference import ReferenceMeasurement
from tightfit.stages.validate import measure
from tightfit.stages.validate.command import wait_passively
from tightfit.stages.validate.measure import BUSY_FRACTION, OriginalMeasurement, time_beside
from tightfit.stages.validate.step_timer import RemoteStepTimer, StepTimer
from tightfit.stages.validate.training_step import StepRunner
from tightfit.util import child_process

WAITED = 0.5


class Sleeping(nn.Linear):
    """Takes time on the clock, and hardly any of a processor."""

    seconds = 0.05

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().forward(x)


def timer(model: nn.Module | None = None) -> StepTimer:
    sample: Any = ((torch.ones(1, 2),), {})
    return StepTimer(model or Sleeping(2, 2), StepRunner([0], None), sample, "cpu")


def test_time_on_the_clock_does_not_count_and_waiting_for_transfers_does() -> None:
    model = Sleeping(2, 2)
    own = timer(model)
    assert 0 < own.time_step() < Sleeping.seconds
    model._tightfit_transfers = SimpleNamespace(last=SimpleNamespace(waited=WAITED))  # type: ignore[assignment]
    assert WAITED < own.time_step() < WAITED + Sleeping.seconds
    assert own.waits == [WAITED] and len(own.seconds) == 2
    assert own.renewed().seconds == []


class Failing(nn.Linear):
    """Runs one step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "ran"):
            raise RuntimeError("no memory")
        self.ran = True
        return super().forward(x)


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "USE_CHILD_PROCESSES", True)
    torch.set_num_threads(1)


def known(remote: RemoteStepTimer | None, lost: float) -> OriginalMeasurement:
    device = ProfileDevice("cpu", "", "", 1, "measured")
    reference = ReferenceMeasurement("", device, {}, 1, 1, (1e-9, 1e-9), lost)
    return OriginalMeasurement(reference, [], remote)


@pytest.mark.usefixtures("forking")
def test_another_process_makes_the_model_and_times_it_when_it_is_asked() -> None:
    here = os.getpid()

    def make() -> StepTimer:
        print("a factory that prints")
        assert os.getpid() != here
        return timer()

    remote = RemoteStepTimer(make)
    try:
        assert 0 < remote.time_step() < Sleeping.seconds
    finally:
        remote.close()


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize(
    ("model", "lost", "timing"),
    [
        (Sleeping, BUSY_FRACTION, CPU_IN_TURNS),
        (Sleeping, 0.0, CPU_APART),
        (Failing, BUSY_FRACTION, CPU_APART),
    ],
)
def test_where_other_work_goes_on_steps_are_timed_in_turns(
    model: type[nn.Linear], lost: float, timing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the other process fails; the times that were known are not used then."""
    monkeypatch.setattr(StepTimer, "lost", 0.0)
    remote = RemoteStepTimer(lambda: timer(model(2, 2)))
    try:
        times, resident = time_beside(timer(), 3, known(remote, lost))
    finally:
        remote.close()
    assert times.timing == timing and resident is not None
    assert times.ratio is not None and times.ratio.repeats == 3
    assert (times.ratio.median < 1e3) == (timing == CPU_IN_TURNS)


def test_a_model_is_not_timed_beside_a_plan_where_both_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "available_memory", lambda: 1)
    unused: Any = None
    beside = replace(known(unused, 1.0), timer=RemoteStepTimer.__new__(RemoteStepTimer))
    assert time_beside(timer(), 2, beside)[0].timing == CPU_APART


def test_threads_that_wait_sleep_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_passively()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_passively()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
