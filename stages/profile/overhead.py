"""Measures the overhead of a link: what its transfers take of the lane that computes (o and O of
LogGOPS).

A loop computes, in turn, without transfers, with short ones and with longer ones. As in a step
(`stages.device.transfers`) one storage leaves and the last one comes back while it computes, and
both are waited for when they should be through. What the loop takes longer is their overhead: to
begin a transfer, to wait for it, and what whoever moves the bytes takes of the processors. It is no
more than processors work for these, which other work on the machine does not change.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tightfit.stages.device.clocks import HostClock
from tightfit.stages.device.devices import wait_for
from tightfit.stages.device.memories import slow_memory
from tightfit.stages.device.slow import Slow
from tightfit.stages.device.transfers import Moving
from tightfit.stages.profile.updates import has_spare

SHORT, LONG = 4096, 1 << 20
"""Bytes of a transfer."""
PARTS = 6
"""How often a loop sends something."""
ROUNDS = 7
LONGER = 4.0
"""How much longer a part of the loop computes than its transfers take."""
LEAST, MOST = 2e-3, 40e-3
"""Seconds of a part, at least and at most."""
THREADS = "tightfit-"
"""What the names of the threads begin with that do transfers."""
_WIDTH, _ELEMENTS, _UNITS = 256, 1 << 18, 8


class Overhead(NamedTuple):
    """Seconds of the lane that computes: of a transfer, and more for each byte of it."""

    transfer: float
    byte: float


def measure_overhead(
    device: torch.device, folder: str | None, seconds: Callable[[int], float]
) -> Overhead:
    """The overhead of the link of a device to its slow memory; `seconds` says what a transfer of so
    many bytes takes. Raises RuntimeError, in one sentence, where the memory has no room."""
    memory = slow_memory(device, LONG, folder)
    try:
        loop = _Loop(device, memory, min(max(LONGER * seconds(LONG), LEAST), MOST))
        loop.run(LONG)
        rounds = [_round(loop, number) for number in range(ROUNDS)]
    finally:
        memory.close()
    alone, short, long = (_median(found) for found in zip(*rounds, strict=True))
    transfers = 2 * PARTS - 1
    return Overhead(
        short.longer(alone) / transfers, long.longer(short) / transfers / (LONG - SHORT)
    )


@dataclass(frozen=True)
class _Timed:
    """The `seconds` of a loop, without those that it waited for long transfers, and those that
    processors worked for transfers, infinite where the system does not count them."""

    seconds: float
    worked: float

    def longer(self, other: _Timed) -> float:
        """What it takes longer than another one."""
        worked = self.worked if math.isinf(self.worked) else self.worked - other.worked
        return max(min(self.seconds - other.seconds, worked), 0.0)


def _round(loop: _Loop, number: int) -> list[_Timed]:
    """The loop without transfers, with short ones and with long ones, each first in turn."""
    sizes = [0, SHORT, LONG]
    turn = number % len(sizes)
    found = {size: loop.run(size) for size in (*sizes[turn:], *sizes[:turn])}
    return [found[size] for size in sizes]


def _median(found: Sequence[_Timed]) -> _Timed:
    seconds, worked = ([getattr(each, name) for each in found] for name in ("seconds", "worked"))
    return _Timed(statistics.median(seconds), statistics.median(worked))


class _Loop:
    """A loop of parts that each compute for so many seconds."""

    def __init__(self, device: torch.device, memory: Slow, part: float) -> None:
        self.device = device
        self.memory = memory
        self.matrix, self.product = (torch.ones(_WIDTH, _WIDTH, device=device) for _ in range(2))
        self.numbers, self.sums = (torch.ones(_ELEMENTS, device=device) for _ in range(2))
        self.sent = torch.zeros(LONG, dtype=torch.uint8, device=device)
        self.spare = has_spare(device)
        self.units, self.worked = _UNITS, 0.0
        self._compute()
        own = min(self._timed(self._compute)[0] for _ in range(3)) / _UNITS
        self.units = max(round(part / max(own, 1e-9)), 1)

    def run(self, size: int) -> _Timed:
        """The loop with transfers of so many bytes, 0 for none."""
        moving = Moving(self.device, LONG, memory=self.memory) if size else None
        tensor = self.sent[:size].clone()
        before, self.worked = _others(), 0.0
        seconds, lost = self._timed(lambda: self._parts(moving, tensor))
        if moving is None:
            return _Timed(seconds, 0.0)
        others = _others() - before if math.isfinite(before) else before
        # Where all processors compute, it is they who delay them, as far as they work.
        delayed = 0.0 if self.spare else min(lost, others)
        waited = moving.moved.waited if size == LONG else 0.0
        return _Timed(seconds + delayed - waited, self.worked + others)

    def _parts(self, moving: Moving | None, tensor: torch.Tensor) -> None:
        back: torch.Tensor | None = None
        for number in range(PARTS):
            if moving is not None:
                begin = time.thread_time()
                moving.offload(number, tensor, 0)
                if number:
                    back = moving.prefetch(number - 1, tensor.dtype, tensor.shape, (1,), 0)
                self.worked += time.thread_time() - begin
            self._compute()
            if moving is not None:
                begin = time.thread_time()
                moving.wait(number)
                if back is not None:
                    moving.wait(number - 1)
                    moving.free(number - 1)
                    back = None
                self.worked += time.thread_time() - begin

    def _compute(self) -> None:
        for _ in range(self.units):
            torch.mm(self.matrix, self.matrix, out=self.product)
            torch.add(self.numbers, self.sums, out=self.sums)

    def _timed(self, call: Callable[[], None]) -> tuple[float, float]:
        """The seconds of a call without those that a thread stood ready for, and these."""

        def run() -> None:
            call()
            wait_for(self.device)

        wait_for(self.device)
        clock = HostClock()
        return clock(run), clock.lost


def _others() -> float:
    """The seconds that processors have worked for the threads of transfers so far, infinite where
    the system counts none of a single thread, as macOS."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return math.inf
    found = 0.0
    for thread in threading.enumerate():
        if thread.ident is not None and thread.name.startswith(THREADS):
            found += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return found
