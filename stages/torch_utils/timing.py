"""Clocks for single calls: on the host, and on a CUDA stream that is never empty.

Other work on the machine takes processors from a call. On the host what it took is left out, as far
as threads that stood ready were delayed (`stages.torch_utils.timing`): what is measured at one time
goes with what is measured at another, and with steps on a machine that is idle.

A call on an idle stream begins only when the host has launched it, some microseconds late. The
stream is therefore filled with a kernel that waits, the calls are queued behind it between two
events, and what the events tell is the time of the device alone.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from tightfit.schemas.costs import PREEMPTION_THRESHOLD

THREADS_FOLDER = Path("/proc/self/task")

ThreadDelays = Mapping[str, tuple[int, int]]
"""Nanoseconds by thread: for which it ran, and for which it stood ready."""


def thread_delays() -> ThreadDelays:
    """The delays of all threads so far; none where the system does not count them."""
    found: dict[str, tuple[int, int]] = {}
    # Asked for around each call that is timed: files are read in the way that takes the least.
    for thread in os.listdir(THREADS_FOLDER) if THREADS_FOLDER.is_dir() else ():  # noqa: PTH208
        try:
            file = os.open(f"{THREADS_FOLDER}/{thread}/schedstat", os.O_RDONLY)
            try:
                ran, waited = os.read(file, 128).split()[:2]
            finally:
                os.close(file)
            found[thread] = int(ran), int(waited)
        except (OSError, ValueError):  # It has ended, or nothing counts.
            continue
    return found


def longest_run_and_delay(before: ThreadDelays, after: ThreadDelays) -> tuple[float, float]:
    """The seconds for which that thread ran which did so the most between two moments, and those by
    which that one was delayed which was so the most."""
    known = [(own, before.get(thread, (0, 0))) for thread, own in after.items()]
    ran = max((own[0] - first[0] for own, first in known), default=0)
    waited = max((own[1] - first[1] for own, first in known), default=0)
    return ran / 1e9, waited / 1e9


TimedCall = Callable[[], Any]

SHORT_CALL_SECONDS = 20e-6
"""Seconds of a call below which events around one run of it tell more of themselves than of it."""

RUNS_TIMED_TOGETHER = 8
"""Runs of a short call that are timed together."""

UNDISTURBED_FRACTION = 0.02
"""The part of a call that other work may take of it while the call counts as undisturbed."""

WATCH_SECONDS = 0.02
"""Seconds for which is watched whether other work goes on."""

_CALIBRATION = 10**6
_SPARE_SECONDS = 50e-6
_MAX_WAIT_SECONDS = 0.02


def host_seconds(call: TimedCall) -> float:
    """The seconds of one call on the host, without what other work took of them; its result is
    dropped outside of them."""
    return HostClock()(call)


@dataclass
class HostClock:
    """Times calls on the host, without what other work took of them. `spent` are the seconds of all
    calls with that, `lost` what it took; `preempted` says whether it took some of the last call,
    after which caches have other contents, and `faults` how many pages the last call took anew."""

    spent: float = 0.0
    lost: float = 0.0
    preempted: bool = False
    faults: int = 0

    def __call__(self, call: TimedCall) -> float:
        """The seconds of one call; its result is dropped outside of them."""
        before, own = thread_delays(), time.thread_time()
        faults = _page_faults()
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
        self.faults = _page_faults() - faults
        own = time.thread_time() - own
        ran, waited = longest_run_and_delay(before, thread_delays())
        # What a thread was delayed by another one may have been waited for meanwhile, and not all
        # of it within the call: no call takes less than a thread of it ran.
        lost = min(waited, max(seconds - max(own, ran), 0.0))
        del result
        self.spent += seconds
        self.lost += lost
        self.preempted = lost > UNDISTURBED_FRACTION * seconds
        return seconds - lost

    @property
    def share(self) -> float:
        """The part of all calls that other work took."""
        return self.lost / self.spent if self.spent else 0.0


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def is_machine_idle() -> bool:
    """Whether hardly any other work is going on: it takes less than `PREEMPTION_THRESHOLD` of a
    call now. Where the system does not count delays that is not known, and so not said."""
    if not thread_delays():
        return False
    clock, end = HostClock(), time.perf_counter() + WATCH_SECONDS

    def spin() -> None:
        while time.perf_counter() < end:
            pass

    clock(spin)
    return clock.share < PREEMPTION_THRESHOLD


@dataclass
class CudaClock:
    """Times calls on the current CUDA device. `cycles` of the filling kernel take a second.

    With `repeatable` a short call is run several times in a row, and the clock tells their mean.
    """

    repeatable: bool
    cycles: float = 0.0
    launch: float = 0.0
    runs: int = 0
    preempted: ClassVar[bool] = False
    faults: ClassVar[int] = 0
    """The device's own clock knows neither other work nor pages of the host."""

    def __call__(self, call: TimedCall) -> float:
        """The seconds of the device for one call; waits until it is done."""
        if not self.runs:
            self._learn(call)
        return self._timed(call, self.runs)

    def _learn(self, call: TimedCall) -> None:
        """Learns the speed of the filling kernel, how long the host takes to launch the call, and
        how many runs are timed together."""
        self.cycles = _CALIBRATION / max(
            _elapsed_seconds(lambda: torch.cuda._sleep(_CALIBRATION)), 1e-9
        )
        torch.cuda.current_stream().synchronize()
        self.launch = host_seconds(call)
        short = self.repeatable and self._timed(call, 1) < SHORT_CALL_SECONDS
        self.runs = RUNS_TIMED_TOGETHER if short else 1

    def _timed(self, call: TimedCall, runs: int) -> float:
        def several() -> None:
            for _ in range(runs):
                call()

        ahead = min(2 * runs * self.launch + _SPARE_SECONDS, _MAX_WAIT_SECONDS)
        torch.cuda._sleep(int(self.cycles * ahead))
        return _elapsed_seconds(several) / runs


def _elapsed_seconds(call: TimedCall) -> float:
    """The seconds between two events around a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = call()
    end.record()
    end.synchronize()
    del result
    return begin.elapsed_time(end) / 1e3
