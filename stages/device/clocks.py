"""Clocks for single calls: on the host, and on a CUDA stream that is never empty.

A call on an idle stream begins only when the host has launched it, some microseconds late. The
stream is therefore filled with a kernel that waits, the calls are queued behind it between two
events, and what the events tell is the time of the device alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]

SHORT = 20e-6
"""Seconds of a call below which events around one run of it tell more of themselves than of it."""

TOGETHER = 8
"""Runs of a short call that are timed together."""

_CALIBRATION = 10**6
_SPARE = 50e-6
_LONGEST = 0.02


def host_seconds(call: Call) -> float:
    """The seconds of one call on the host; its result is dropped outside of them."""
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    del result
    return seconds


@dataclass
class CudaClock:
    """Times calls on the current CUDA device. `cycles` of the filling kernel take a second.

    With `repeatable` a short call is run several times in a row, and the clock tells their mean.
    """

    repeatable: bool
    cycles: float = 0.0
    launch: float = 0.0
    runs: int = 0

    def __call__(self, call: Call) -> float:
        """The seconds of the device for one call; waits until it is done."""
        if not self.runs:
            self._learn(call)
        return self._timed(call, self.runs)

    def _learn(self, call: Call) -> None:
        """Learns the speed of the filling kernel, how long the host takes to launch the call, and
        how many runs are timed together."""
        self.cycles = _CALIBRATION / max(_elapsed(lambda: torch.cuda._sleep(_CALIBRATION)), 1e-9)
        torch.cuda.current_stream().synchronize()
        self.launch = host_seconds(call)
        short = self.repeatable and self._timed(call, 1) < SHORT
        self.runs = TOGETHER if short else 1

    def _timed(self, call: Call, runs: int) -> float:
        def several() -> None:
            for _ in range(runs):
                call()

        ahead = min(2 * runs * self.launch + _SPARE, _LONGEST)
        torch.cuda._sleep(int(self.cycles * ahead))
        return _elapsed(several) / runs


def _elapsed(call: Call) -> float:
    """The seconds between two events around a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = call()
    end.record()
    end.synchronize()
    del result
    return begin.elapsed_time(end) / 1e3
