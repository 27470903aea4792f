"""Times on CUDA are those of the device; told on doubles of torch.cuda."""

from __future__ import annotations

import pytest
import torch

from tests.stages.torch_utils.fake_gpus import Gpus, stand_in
from tightfit.stages.torch_utils.memory_meter import time_calls
from tightfit.stages.torch_utils.timing import RUNS_TIMED_TOGETHER, CudaClock, host_seconds


class Stream:
    """A stream in which every call takes some seconds, and is late where nothing is queued."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float) -> None:
        self.gpus: Gpus = stand_in(patch)
        self.now = self.busy = 0.0
        self.seconds = seconds
        patch.setattr(torch.cuda, "_sleep", self.sleep)
        patch.setattr(torch.cuda, "Event", lambda enable_timing: Mark(self))
        patch.setattr(torch.cuda, "current_stream", lambda: Mark(self))
        patch.setattr("tightfit.stages.torch_utils.timing.host_seconds", self.launched)

    def sleep(self, cycles: int) -> None:
        self.busy = max(self.busy, self.now) + cycles / 1e9

    def launch(self) -> None:
        """The host takes ten microseconds; the device begins when it is free."""
        self.now += 10e-6
        self.busy = max(self.busy, self.now) + self.seconds

    def launched(self, call: object) -> float:
        self.launch()
        return 10e-6

    def wait(self) -> None:
        self.now = max(self.now, self.busy)


class Mark:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at = 0.0

    def record(self) -> None:
        self.stream.busy = self.at = max(self.stream.busy, self.stream.now)

    def synchronize(self) -> None:
        self.stream.wait()

    def elapsed_time(self, other: Mark) -> float:
        return (other.at - self.at) * 1e3


@pytest.mark.parametrize("seconds", [3e-6, 500e-6])
@pytest.mark.parametrize("repeatable", [True, False])
def test_the_launch_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, seconds: float, repeatable: bool
) -> None:
    stream = Stream(monkeypatch, seconds)
    timing = time_calls("cuda:1", stream.launch, repeatable=repeatable)
    assert timing.median == pytest.approx(seconds)


def test_short_calls_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, repeatable, runs in (
        (3e-6, True, RUNS_TIMED_TOGETHER),
        (3e-6, False, 1),
        (1e-3, True, 1),
    ):
        stream = Stream(monkeypatch, seconds)
        clock = CudaClock(repeatable)
        assert clock(stream.launch) == pytest.approx(seconds)
        assert clock.runs == runs


def test_what_runs_ahead_of_a_call_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch, 100e-6)

    def before() -> None:
        stream.busy = max(stream.busy, stream.now) + 1.0
        stream.wait()

    assert time_calls("cuda", stream.launch, before).median == pytest.approx(100e-6)


def test_the_host_has_a_clock_of_its_own() -> None:
    assert host_seconds(lambda: None) >= 0.0
