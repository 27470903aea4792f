"""Measures steps: their memory, and their time beside another module's."""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tightfit.schemas.telling import Doing
from tightfit.stages.device.clocks import HostClock
from tightfit.stages.device.devices import kept_random_states, release, wait_for, waiting_on_host
from tightfit.stages.device.factory import Sample
from tightfit.stages.device.meter import Timing, Usage, session, summarise
from tightfit.stages.device.trees import flatten
from tightfit.stages.replay.allocator import Taken
from tightfit.stages.validate.sent import last_moved
from tightfit.stages.validate.step import Stepper, forget_gradients

TIMING = "timing"
"""What is told of steps that are timed."""


@dataclass(frozen=True)
class Times:
    """Seconds of the two modules, and their ratio: of alternating pairs of runs pair by pair, or of
    runs in processes of their own each by each; of the planned module alone where the other does
    not fit. `waited` is the median of what a planned run waited for transfers, None where it sends
    nothing, and `runs` are the seconds of the planned runs."""

    planned: Timing
    unplanned: Timing | None
    ratio: Timing | None
    waited: float | None = None
    runs: Sequence[float] = ()


def measure_memory(
    module: nn.Module, stepper: Stepper, sample: Sample, device: str, warm: bool = False
) -> tuple[Usage, Usage]:
    """The memory of one step where `.grad` is None when it begins, and of the next one, which finds
    it there; each above what was allocated when it began. A step to warm up comes first, unless the
    module is `warm`.

    The lines end while the output and what it received are still held.
    """
    forget_gradients(module, sample)
    if not warm:
        stepper.run(module, sample)
        forget_gradients(module, sample)
    fresh = _memory_of_step(module, stepper, sample, device)
    accumulating = _memory_of_step(module, stepper, sample, device)
    forget_gradients(module, sample)
    return fresh, accumulating


def _memory_of_step(module: nn.Module, stepper: Stepper, sample: Sample, device: str) -> Usage:
    gc.collect()
    with session(device, lines=True) as running:
        running.mark("begin")
        alive = stepper.run(module, sample)
        running.mark("end")
    del alive
    return running.usage("begin", "end")


@dataclass(frozen=True)
class GpuUse:
    """What a process takes of a CUDA device: the most bytes by the three ways to count them and, as
    `context`, what else of the device is in use, CUDA's context and other processes."""

    most: Taken
    context: int


def taken_memory(
    module: nn.Module,
    stepper: Stepper,
    sample: Sample,
    device: str,
    steps: int = 2,
    others: Iterable[torch.Tensor] = (),
) -> GpuUse | None:
    """What some steps take of a CUDA device, parameters, inputs and workspaces of libraries
    included; None on the CPU.

    To be called before anything else has run there. Buffers and random states come back; `others`
    are tensors that the steps have no use for, which wait on the host.
    """
    if torch.device(device).type != "cuda":
        return None
    used = {leaf.untyped_storage()._cdata for leaf in _tensors(sample)}
    others = [other for other in others if other.untyped_storage()._cdata not in used]
    with waiting_on_host(others):
        release(device)
        torch.cuda.reset_peak_memory_stats(device)
        with kept_random_states(), _kept_buffers(module):
            for _ in range(steps):
                stepper.run(module, sample)
                forget_gradients(module, sample)
            wait_for(device)
            return gpu_use(device)


def gpu_use(device: str) -> GpuUse:
    """What has been taken of a CUDA device at most since its counters were reset."""
    counters = torch.cuda.memory_stats(device)
    ways = ("requested", "allocated", "reserved")
    most = Taken(*(counters[f"{way}_bytes.all.peak"] for way in ways))
    free, total = torch.cuda.mem_get_info(device)
    return GpuUse(most, total - free - counters["reserved_bytes.all.current"])


def _tensors(sample: Sample) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(sample)[0] if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def _kept_buffers(module: nn.Module) -> Iterator[None]:
    """The contents of a module's buffers come back at its end; they wait on the host."""
    kept = {name: buffer.to("cpu", copy=True) for name, buffer in module.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(kept[name])


def measure_alone(
    module: nn.Module,
    stepper: Stepper,
    sample: Sample,
    runs: int,
    device: str,
    told: Doing | None = None,
    unplanned: Sequence[float] = (),
) -> Times:
    """Times steps of one module that has run, each of which is `told`; `.grad` is None before each.
    The ratio is that to the steps of the other one in a process of its own, where these are known:
    all quotients of one of its steps and one of `unplanned`."""
    told, clock = told or Doing(), HostClock()
    gc.collect()
    gc.disable()
    try:
        waits: list[float] = []
        seconds = []
        for _ in range(runs):
            told(TIMING)
            seconds.append(_seconds(module, stepper, sample, device, clock, waits))
    finally:
        gc.enable()
    planned = replace(summarise(seconds), lost=clock.share)
    if not unplanned:
        return Times(planned, None, None, _median(waits), seconds)
    quotients = summarise([mine / other for mine in seconds for other in unplanned])
    ratio = replace(quotients, repeats=runs)
    return Times(planned, summarise(list(unplanned)), ratio, _median(waits), seconds)


def measure_times(
    planned: nn.Module,
    unplanned: nn.Module,
    stepper: Stepper,
    sample: Sample,
    pairs: int,
    device: str,
    told: Doing | None = None,
) -> Times:
    """Times pairs of steps of modules that have run, the planned one first in every other pair,
    each of which is `told`; `.grad` is None before each."""
    told, clock = told or Doing(), HostClock()
    modules = [planned, unplanned]
    gc.collect()
    gc.disable()
    try:
        runs: list[list[float]] = [[], []]
        waits: tuple[list[float], list[float]] = ([], [])
        for pair in range(pairs):
            told(TIMING)
            for index in (0, 1) if pair % 2 == 0 else (1, 0):
                seconds = _seconds(modules[index], stepper, sample, device, clock, waits[index])
                runs[index].append(seconds)
    finally:
        gc.enable()
    ratios = [mine / other for mine, other in zip(*runs, strict=True)]
    waited, planned_time = _median(waits[0]), replace(summarise(runs[0]), lost=clock.share)
    return Times(planned_time, summarise(runs[1]), summarise(ratios), waited, runs[0])


def _median(seconds: Sequence[float]) -> float | None:
    return statistics.median(seconds) if seconds else None


def _seconds(
    module: nn.Module,
    stepper: Stepper,
    sample: Sample,
    device: str,
    clock: HostClock,
    waits: list[float],
) -> float:
    """The seconds of a step, without what other work took of them; what it waited for transfers is
    added to `waits`."""

    def step() -> Any:
        alive = stepper.run(module, sample)
        wait_for(device)
        return alive

    forget_gradients(module, sample)
    wait_for(device)
    seconds = clock(step)
    forget_gradients(module, sample)
    moved = last_moved(module)
    if moved is not None:
        waits.append(moved.waited)
    return seconds
