"""Measures the memory of calls, with one interface for the CPU and for CUDA.

A session is a stretch of execution in which points of the program are marked by name; afterwards
it tells the memory between any two marks. On the CPU the numbers are the running sum of the
profiler's allocation events, exact to the byte, a library's workspace included. On CUDA they are
the bytes requested from PyTorch's allocator, before rounding.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tightfit.stages.torch_utils.devices import enter_device, parse_device, synchronize_device
from tightfit.stages.torch_utils.timing import CudaClock, HostClock

AllocationTimeline = list[tuple[float, int]]
"""Seconds since the first mark and bytes above what was allocated there, one entry a change."""

_MARK_PREFIX = "tightfit mark "

FAULT_TOLERANCE, FEW_FAULTS = 1.1, 16
"""New pages of a call by which it may exceed, as a factor and a number, the one with the fewest."""
FEW_REPEATS = 3
"""Repeated calls that are enough where these take long."""


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes above what was allocated at the first mark: the `peak` and, at the second, the `net`.

    `line` is how the live bytes went; it is empty where the session does not record lines. `moves`
    are, on CUDA and with lines, what the allocator was asked for, as `OpAllocations` has them
    (`schemas.costs`), without frees of what was there at the first mark.
    """

    peak: int
    net: int
    line: AllocationTimeline
    moves: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class MarkUsage:
    """Allocated bytes at a mark: `live` then, and `peak`, the most since the mark before it."""

    peak: int
    live: int


class MemorySession(ABC):
    """Marks points of a running program; knows the memory between them once it has ended."""

    @abstractmethod
    def mark(self, label: str) -> None:
        """Names this point of the program; a label occurs once in a session."""

    @abstractmethod
    def usage(self, first: str, last: str) -> MemoryUsage:
        """The memory between two marks, the earlier one first, after the session's end."""

    @abstractmethod
    def mark_usages(self) -> dict[str, MarkUsage]:
        """The memory at each mark, in their order, after the session's end."""

    @contextmanager
    def section(self, label: str) -> Iterator[None]:
        """Marks the begin and the end of a stretch of the program."""
        self.mark(f"{label} begins")
        yield
        self.mark(f"{label} ends")

    def section_usage(self, label: str) -> MemoryUsage:
        """The memory of a `section`."""
        return self.usage(f"{label} begins", f"{label} ends")


@contextmanager
def memory_session(device: torch.device | str, lines: bool = False) -> Iterator[MemorySession]:
    """Measures the memory of parts of a program, such as a training step.

    On the CPU, bytes are those of the profiler's events of allocation in the calling thread and in
    the backward. On CUDA they are those requested of PyTorch's allocator. The garbage collector is
    paused: collect before the session if cycles may hold memory.

    Args:
        device: Device whose memory is measured: "cpu", "cuda" or "cuda:1".
        lines: Record the bytes over time, too. On CUDA this takes time and memory of the host.

    Returns:
        A context manager of a session. `with session.section(name):` marks a part. Once the session
        has ended, `session.section_usage(name).peak` is the most bytes above those that were
        allocated when the part began, and `.net` the bytes that stay.

    Raises:
        ConfigError: The device is none, or is not there.

    Example:
        >>> with tightfit.memory_session("cpu") as session, session.section("step"):
        ...     loss_function(module(inputs), targets).backward()
        >>> print(session.section_usage("step").peak)
    """
    place = parse_device(device)
    opened = CudaSession(place, lines) if place.type == "cuda" else CpuSession()
    enabled = gc.isenabled()
    gc.disable()
    try:
        with opened.running():
            yield opened
    finally:
        if enabled:
            gc.enable()


def measure_call_memory(
    device: torch.device | str, call: Callable[[], Any]
) -> tuple[MemoryUsage, Any]:
    """Runs a call once in a session of its own; returns its memory and its result, still held."""
    recorded = torch.device(device).type == "cuda"
    with memory_session(device, lines=recorded) as running, running.section("call"):
        result = call()
    return running.section_usage("call"), result


class CpuSession(MemorySession):
    """Memory on the CPU, from the profiler's allocation events of the calling thread."""

    def __init__(self) -> None:
        self._events: list[tuple[int, str, int]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the profiler; its own messages about starting and stopping are turned off."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield
        kept: list[tuple[int, str, int]] = []
        for event in profiler.profiler.kineto_results.events():
            name = event.name()
            if name == "[memory]":
                if event.device_type() == torch.autograd.DeviceType.CPU:
                    kept.append((event.start_ns(), "", event.nbytes()))
            elif name.startswith(_MARK_PREFIX):
                kept.append((event.start_ns(), name.removeprefix(_MARK_PREFIX), 0))
        self._events = sorted(kept, key=lambda event: event[0])

    def mark(self, label: str) -> None:
        """See `Session.mark`."""
        with record_function(_MARK_PREFIX + label):
            pass

    def usage(self, first: str, last: str) -> MemoryUsage:
        """See `Session.usage`; the line is always there."""
        position = {label: index for index, (_, label, _) in enumerate(self._events) if label}
        events = self._events[position[first] : position[last] + 1]
        start = events[0][0]
        line: AllocationTimeline = [(0.0, 0)]
        for moment, _, size in events:
            if size:
                line.append(((moment - start) / 1e9, line[-1][1] + size))
        return MemoryUsage(max(live for _, live in line), line[-1][1], line)

    def mark_usages(self) -> dict[str, MarkUsage]:
        """See `Session.mark_usages`; bytes are above those at the session's begin."""
        usages: dict[str, MarkUsage] = {}
        live = peak = 0
        for _, label, size in self._events:
            live += size
            peak = max(peak, live)
            if label:
                usages[label] = MarkUsage(peak, live)
                peak = live
        return usages


@dataclass
class CudaSession(MemorySession):
    """Memory on a CUDA device, from the statistics of PyTorch's caching allocator."""

    device: torch.device
    lines: bool
    _marks: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _history: list[tuple[int, int, int]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Resets the allocator's peak; records its history where lines are asked for."""
        synchronize_device(self.device)
        if self.lines:
            torch.cuda.memory._record_memory_history(context=None, clear_history=True)
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            yield
            synchronize_device(self.device)
            self._history = self._trace()
        finally:
            if self.lines:
                torch.cuda.memory._record_memory_history(enabled=None)

    def mark(self, label: str) -> None:
        """See `Session.mark`."""
        counters = torch.cuda.memory_stats(self.device)
        peak = counters["requested_bytes.all.peak"]
        live = counters["requested_bytes.all.current"]
        self._marks[label] = (peak, live, len(self._trace()))
        torch.cuda.reset_peak_memory_stats(self.device)

    def usage(self, first: str, last: str) -> MemoryUsage:
        """See `Session.usage`."""
        labels = list(self._marks)
        between = labels[labels.index(first) : labels.index(last) + 1]
        _, start, begin = self._marks[first]
        _, live, end = self._marks[last]
        peak = max(self._marks[label][0] for _, label in pairwise(between))
        line: AllocationTimeline = [(0.0, 0)]
        for moment, size, _ in self._history[begin:end]:
            seconds = (moment - self._history[begin][0]) / 1e6
            line.append((seconds, line[-1][1] + size))
        moves = _allocator_moves(self._history[begin:end])
        return MemoryUsage(max(peak, live) - start, live - start, line if self.lines else [], moves)

    def mark_usages(self) -> dict[str, MarkUsage]:
        """See `Session.mark_usages`."""
        return {label: MarkUsage(peak, live) for label, (peak, live, _) in self._marks.items()}

    def _trace(self) -> list[tuple[int, int, int]]:
        """The allocator's history as (microseconds, bytes, address) so far; empty without lines."""
        if not self.lines:
            return []
        signs = {"alloc": 1, "free_completed": -1}
        traces = torch.cuda.memory._snapshot(self.device)["device_traces"][self.device.index]
        return [
            (entry["time_us"], signs[entry["action"]] * entry["size"], entry["addr"])
            for entry in traces
            if entry["action"] in signs
        ]


def _allocator_moves(history: list[tuple[int, int, int]]) -> list[int]:
    """What was taken, and of that what was given back."""
    moves: list[int] = []
    live: dict[int, int] = {}
    taken = 0
    for _, size, address in history:
        if size > 0:
            taken += 1
            live[address] = taken
            moves.append(size)
        elif address in live:
            moves.append(-live.pop(address))
    return moves


@dataclass(frozen=True)
class CallTiming:
    """Seconds of repeated calls: the median and the quartiles, and how many calls there were. Other
    work took the part `lost` of their time, which these are without; 0 where enough of the calls
    were left alone, which these are of then."""

    median: float
    first_quartile: float
    third_quartile: float
    repeats: int
    lost: float = 0.0

    @property
    def spread(self) -> float:
        """The interquartile range relative to the median."""
        return (self.third_quartile - self.first_quartile) / self.median if self.median else 0.0


def time_calls(
    device: torch.device | str,
    call: Callable[[], Any],
    before: Callable[[], None] | None = None,
    limit: float = 0.05,
    least: int = 5,
    most: int = 15,
    steady: float = 0.25,
    repeatable: bool = False,
) -> CallTiming:
    """Times a call again and again, its result dropped outside the measured time.

    `before` runs ahead of each call, outside the measured time. Repeats for `limit` seconds, but
    `least` times, and at most `most` times; for up to three times as long where the spread exceeds
    `steady`. Of calls that take so long by themselves three that agree are enough. Those that other
    work disturbed count only where fewer than `least` were left alone. On CUDA the time is that of
    the device, without the launch, on the host that without what other work took of it
    (`stages.torch_utils.timing`); `repeatable` says that a call may be run several times after one
    `before`.
    """
    with enter_device(device):
        if torch.device(device).type == "cuda":
            return _time_repeatedly(
                CudaClock(repeatable), call, before, limit, least, most, steady
            )[0]
        clock = HostClock()
        timing, calm = _time_repeatedly(clock, call, before, limit, least, most, steady)
        return timing if calm else replace(timing, lost=clock.share)


def _time_repeatedly(
    clock: HostClock | CudaClock,
    call: Callable[[], Any],
    before: Callable[[], None] | None,
    limit: float,
    least: int,
    most: int,
    steady: float,
) -> tuple[CallTiming, bool]:
    """The timing of the calls that were not disturbed, and True, where these are enough; else that
    of all of them. Calls that took more new pages than others do not count: a step that follows
    others finds its pages in memory."""
    samples: list[_CallSample] = []
    started = time.perf_counter()
    while True:
        if before is not None:
            before()
        samples.append(_CallSample(clock(call), clock.faults, clock.preempted))
        spent, count = time.perf_counter() - started, len(samples)
        over = spent > 3 * limit or count >= 3 * most
        most_faults = min(each.faults for each in samples) * FAULT_TOLERANCE + FEW_FAULTS
        steady_calls = [each for each in samples if each.faults <= most_faults]
        calm = [each.seconds for each in steady_calls if not each.preempted]
        seconds = [each.seconds for each in steady_calls]
        enough = len(calm) >= min(least, len(seconds))
        if count < 3 * most and len(seconds) < (FEW_REPEATS if over else least):
            continue
        if FEW_REPEATS <= count < least and over:
            timing = summarize_timings(calm if enough else seconds)
            if timing.spread <= steady / 2:
                return timing, enough
        elif count >= least and (spent > limit or count >= most):
            timing = summarize_timings(calm if enough else seconds)
            if over or timing.spread <= steady:
                return timing, enough


@dataclass(frozen=True)
class _CallSample:
    """One call that was timed."""

    seconds: float
    faults: int
    preempted: bool


def summarize_timings(seconds: list[float]) -> CallTiming:
    """The median and quartiles of some times, by linear interpolation between neighbors."""
    if len(seconds) == 1:
        return CallTiming(seconds[0], seconds[0], seconds[0], 1)
    first, median, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return CallTiming(median, first, third, len(seconds))
