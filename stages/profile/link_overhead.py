"""Measures the overhead of a link: what its transfers take of the lane that computes (o and O of
LogGOPS).

A loop computes, in turn, without transfers, with short ones and with longer ones. As in a step
(`stages.runtime.offload.transfers`) one storage leaves and the last one comes back while it
computes, and both are waited for when they should be through. What the loop takes longer is their
overhead: to begin a transfer, to wait for it, and what whoever moves the bytes takes of the
processors. It is no more than processors work for these, which other work on the machine does not
change."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tightfit.stages.profile.optimizer_updates import has_spare_core
from tightfit.stages.runtime.offload.host_target import create_offload_target
from tightfit.stages.runtime.offload.target import OffloadTarget
from tightfit.stages.runtime.offload.transfers import StepTransfers
from tightfit.stages.torch_utils.devices import synchronize_device
from tightfit.stages.torch_utils.timing import HostClock

SHORT_TRANSFER_BYTES, LONG_TRANSFER_BYTES = 4096, 1 << 20
"""Bytes of a transfer."""
LOOP_PARTS = 6
"""How often a loop sends something."""
ROUNDS = 7
COMPUTE_FACTOR = 4.0
"""How much longer a part of the loop computes than its transfers take."""
MIN_PART_SECONDS, MAX_PART_SECONDS = 2e-3, 40e-3
"""Seconds of a part, at least and at most."""
TRANSFER_THREAD_PREFIX = "tightfit-"
"""What the names of the threads begin with that do transfers."""
_WIDTH, _ELEMENTS, _UNITS = 256, 1 << 18, 8


class LinkOverhead(NamedTuple):
    """Seconds of the lane that computes: of a transfer, and more for each byte of it."""

    transfer: float
    byte: float


def measure_transfer_overhead(
    device: torch.device, folder: str | None, seconds: Callable[[int], float]
) -> LinkOverhead:
    """The overhead of the link of a device to its offload target; `seconds` says what a transfer of
    so many bytes takes. Raises RuntimeError, in one sentence, where the memory has no room."""
    memory = create_offload_target(device, LONG_TRANSFER_BYTES, folder)
    try:
        loop = _ComputeLoop(
            device,
            memory,
            min(
                max(COMPUTE_FACTOR * seconds(LONG_TRANSFER_BYTES), MIN_PART_SECONDS),
                MAX_PART_SECONDS,
            ),
        )
        loop.run(LONG_TRANSFER_BYTES)
        rounds = [_run_round(loop, number) for number in range(ROUNDS)]
    finally:
        memory.close()
    alone, short, long = (_median_timing(found) for found in zip(*rounds, strict=True))
    transfers = 2 * LOOP_PARTS - 1
    return LinkOverhead(
        short.excess_over(alone) / transfers,
        long.excess_over(short) / transfers / (LONG_TRANSFER_BYTES - SHORT_TRANSFER_BYTES),
    )


@dataclass(frozen=True)
class _LoopTiming:
    """The `seconds` of a loop, without those that it waited for long transfers, and those that
    processors worked for transfers, infinite where the system does not count them."""

    seconds: float
    worked: float

    def excess_over(self, other: _LoopTiming) -> float:
        """What it takes longer than another one."""
        worked = self.worked if math.isinf(self.worked) else self.worked - other.worked
        return max(min(self.seconds - other.seconds, worked), 0.0)


def _run_round(loop: _ComputeLoop, number: int) -> list[_LoopTiming]:
    """The loop without transfers, with short ones and with long ones, each first in turn."""
    sizes = [0, SHORT_TRANSFER_BYTES, LONG_TRANSFER_BYTES]
    turn = number % len(sizes)
    found = {size: loop.run(size) for size in (*sizes[turn:], *sizes[:turn])}
    return [found[size] for size in sizes]


def _median_timing(found: Sequence[_LoopTiming]) -> _LoopTiming:
    seconds, worked = ([getattr(each, name) for each in found] for name in ("seconds", "worked"))
    return _LoopTiming(statistics.median(seconds), statistics.median(worked))


class _ComputeLoop:
    """A loop of parts that each compute for so many seconds."""

    def __init__(self, device: torch.device, memory: OffloadTarget, part: float) -> None:
        self.device = device
        self.memory = memory
        self.matrix, self.product = (torch.ones(_WIDTH, _WIDTH, device=device) for _ in range(2))
        self.numbers, self.sums = (torch.ones(_ELEMENTS, device=device) for _ in range(2))
        self.sent = torch.zeros(LONG_TRANSFER_BYTES, dtype=torch.uint8, device=device)
        self.spare = has_spare_core(device)
        self.units, self.worked = _UNITS, 0.0
        self._compute()
        own = min(self._timed(self._compute)[0] for _ in range(3)) / _UNITS
        self.units = max(round(part / max(own, 1e-9)), 1)

    def run(self, size: int) -> _LoopTiming:
        """The loop with transfers of so many bytes, 0 for none."""
        moving = (
            StepTransfers(self.device, LONG_TRANSFER_BYTES, memory=self.memory) if size else None
        )
        tensor = self.sent[:size].clone()
        before, self.worked = _transfer_thread_seconds(), 0.0
        seconds, lost = self._timed(lambda: self._parts(moving, tensor))
        if moving is None:
            return _LoopTiming(seconds, 0.0)
        others = _transfer_thread_seconds() - before if math.isfinite(before) else before
        # Where all processors compute, it is they who delay them, as far as they work.
        delayed = 0.0 if self.spare else min(lost, others)
        waited = moving.moved.waited if size == LONG_TRANSFER_BYTES else 0.0
        return _LoopTiming(seconds + delayed - waited, self.worked + others)

    def _parts(self, moving: StepTransfers | None, tensor: torch.Tensor) -> None:
        back: torch.Tensor | None = None
        for number in range(LOOP_PARTS):
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
            synchronize_device(self.device)

        synchronize_device(self.device)
        clock = HostClock()
        return clock(run), clock.lost


def _transfer_thread_seconds() -> float:
    """The seconds that processors have worked for the threads of transfers so far, infinite where
    the system counts none of a single thread, as macOS."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return math.inf
    found = 0.0
    for thread in threading.enumerate():
        if thread.ident is not None and thread.name.startswith(TRANSFER_THREAD_PREFIX):
            found += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return found
