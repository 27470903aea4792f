"""Measures steps: their memory, and their time beside another module's."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import torch
from torch import nn

from stages.device.devices import wait_for
from stages.device.factory import Sample
from stages.device.meter import Timing, Usage, session, summarise
from stages.validate.step import Stepper, forget_gradients


@dataclass(frozen=True)
class Times:
    """Seconds of the two modules of alternating pairs of runs, and their ratio pair by pair."""

    planned: Timing
    unplanned: Timing
    ratio: Timing


def measure_memory(
    module: nn.Module, stepper: Stepper, sample: Sample, device: str, accumulate: bool = False
) -> Usage:
    """The memory of one step after two to warm up, above what was allocated when it began.

    `.grad` is None when it begins, or is already there with `accumulate`. The line ends while the
    output and what it received are still held.
    """
    for _ in range(2):
        forget_gradients(module, sample)
        stepper.run(module, sample)
    if not accumulate:
        forget_gradients(module, sample)
    gc.collect()
    with session(device, lines=True) as running:
        running.mark("begin")
        held = stepper.run(module, sample)
        running.mark("end")
    del held
    forget_gradients(module, sample)
    return running.usage("begin", "end")


def reserved_memory(module: nn.Module, stepper: Stepper, sample: Sample, device: str) -> int | None:
    """The most bytes that the allocator took from a CUDA device for a step; None on the CPU."""
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    stepper.run(module, sample)
    forget_gradients(module, sample)
    return torch.cuda.max_memory_reserved(device)


def measure_times(
    planned: nn.Module,
    unplanned: nn.Module,
    stepper: Stepper,
    sample: Sample,
    pairs: int,
    device: str,
) -> Times:
    """Times pairs of steps, the planned one first in every other pair; `.grad` is None before each.

    Both modules run once before the first pair.
    """
    modules = [planned, unplanned]
    for module in modules:
        _seconds(module, stepper, sample, device)
    gc.collect()
    gc.disable()
    try:
        runs: list[list[float]] = [[], []]
        for pair in range(pairs):
            for index in (0, 1) if pair % 2 == 0 else (1, 0):
                runs[index].append(_seconds(modules[index], stepper, sample, device))
    finally:
        gc.enable()
    ratios = [mine / other for mine, other in zip(*runs, strict=True)]
    return Times(summarise(runs[0]), summarise(runs[1]), summarise(ratios))


def _seconds(module: nn.Module, stepper: Stepper, sample: Sample, device: str) -> float:
    forget_gradients(module, sample)
    wait_for(device)
    start = time.perf_counter()
    held = stepper.run(module, sample)
    wait_for(device)
    seconds = time.perf_counter() - start
    del held
    forget_gradients(module, sample)
    return seconds
