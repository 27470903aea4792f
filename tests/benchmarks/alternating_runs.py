"""Measures contestants: peak memory, time against the first, bits. Times are taken in turns in one
process, or in processes of their own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.benchmarks.baselines import Contestant
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.stages.torch_utils.model_factory import Sample
from tightfit.stages.validate.training_step import (
    RandomOutputGradients,
    StepRunner,
    clear_gradients,
)


@dataclass(frozen=True)
class Result:
    """`peak` and `accumulating_peak` in bytes, without parameters; `ratios` are the lower quartile,
    median and upper quartile of the time over the first contestant's in the same round; `seconds`
    is the median; `exact` whether outputs, gradients and buffers have the first one's bits."""

    name: str
    peak: int
    accumulating_peak: int
    seconds: float
    ratios: tuple[float, float, float]
    exact: bool
    predicted_peak: int | None
    predicted_seconds: float | None


def contest(
    contestants: Sequence[Contestant],
    stepper: StepRunner,
    sample: Sample,
    rounds: int,
    waiting: bool = False,
    timed_apart: Callable[[Contestant], float] | None = None,
) -> list[Result]:
    """Results in the order given; the first contestant is the reference of ratios and bits. Steps
    that are `waiting` for something are timed by the clock on the wall. `timed_apart` gives the
    seconds of a step in a process of its own, which is called once a round."""
    reference = _state_after(contestants[0], stepper, sample)
    exact = [_same(_state_after(c, stepper, sample), reference) for c in contestants]
    peaks = [_peaks(contestant, stepper, sample) for contestant in contestants]
    if timed_apart is None:
        seconds = _seconds(contestants, stepper, sample, rounds, waiting)
    else:
        turns = [[timed_apart(each) for each in contestants] for _ in range(rounds)]
        seconds = [list(each) for each in zip(*turns, strict=True)]
    results = []
    for index, contestant in enumerate(contestants):
        ratios = [own / first for own, first in zip(seconds[index], seconds[0], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        results.append(
            Result(
                contestant.name,
                peaks[index][0],
                peaks[index][1],
                statistics.median(seconds[index]),
                (low, middle, high),
                exact[index],
                contestant.predicted_peak,
                contestant.predicted_seconds,
            )
        )
    return results


def _step(contestant: Contestant, stepper: StepRunner, sample: Sample) -> object:
    with contestant.setting():
        return stepper.run(contestant.module, sample)


def _state_after(contestant: Contestant, stepper: StepRunner, sample: Sample) -> list[Tensor]:
    """Outputs, gradients and buffers of one seeded step, then everything as it was."""
    module = contestant.module
    before = [buffer.clone() for buffer in module.buffers()]
    clear_gradients(module, sample)
    torch.manual_seed(1)
    with contestant.setting():
        output, _ = stepper.run(module, sample, RandomOutputGradients(2))
    state = [leaf.detach() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    state += [p.grad for p in module.parameters() if p.grad is not None]
    state += [buffer.clone() for buffer in module.buffers()]
    clear_gradients(module, sample)
    _restore(module, before)
    return state


@torch.no_grad()
def _restore(module: nn.Module, buffers: Sequence[Tensor]) -> None:
    for buffer, old in zip(module.buffers(), buffers, strict=True):
        buffer.copy_(old)


def _same(state: Sequence[Tensor], reference: Sequence[Tensor]) -> bool:
    return len(state) == len(reference) and all(
        torch.equal(own, first) for own, first in zip(state, reference, strict=True)
    )


def _peaks(contestant: Contestant, stepper: StepRunner, sample: Sample) -> tuple[int, int]:
    """Peak with no gradient there, and with the gradients of the step before."""

    def peak(call: Callable[[], object]) -> int:
        usage, held = measure_call_memory("cpu", call)
        del held
        return usage.peak

    def step() -> object:
        return _step(contestant, stepper, sample)

    clear_gradients(contestant.module, sample)
    fresh = peak(step)
    accumulating = peak(step)
    clear_gradients(contestant.module, sample)
    return fresh, accumulating


def _seconds(
    contestants: Sequence[Contestant],
    stepper: StepRunner,
    sample: Sample,
    rounds: int,
    waiting: bool,
) -> list[list[float]]:
    """Seconds of a step by contestant and round; within a round all take turns.

    With one thread these are seconds of its processor, which other work hardly changes, but where
    steps are `waiting`: what other threads do beside a step is not of its time.
    """
    alone = torch.get_num_threads() == 1 and not waiting
    clock = time.process_time if alone else time.perf_counter
    seconds: list[list[float]] = [[] for _ in contestants]
    for turn in range(rounds):
        order = range(len(contestants))
        for index in order if turn % 2 == 0 else reversed(order):
            clear_gradients(contestants[index].module, sample)
            start = clock()
            held = _step(contestants[index], stepper, sample)
            seconds[index].append(clock() - start)
            del held
    return seconds
