"""Steps of planned modules with their optimizers, measured and compared with plain ones."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import torch
from torch import Tensor

from tightfit.stages.torch_utils.memory_meter import memory_session


def loss(output: Tensor) -> Tensor:
    return output.square().mean()


def alike(one: Any, other: Any) -> bool:
    """Whether two state_dicts have the same keys and bits."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


class Measured:
    """Runs forward, loss and backward of a module, and keeps what the caller has of the last run:
    its output and the `value` of the loss."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.output: Any = None
        self.value: Any = None

    def peak(self, args: Any, within: contextlib.AbstractContextManager[Any] | None = None) -> int:
        """The bytes of a run `within` something, above those that were there before it."""
        self.output = self.value = None
        gc.collect()
        with within or contextlib.nullcontext(), memory_session("cpu", lines=True) as running:
            running.mark("begin")
            self.output = self.module(*args)
            self.value = loss(self.output)
            self.value.backward()
            running.mark("end")
        return running.usage("begin", "end").peak


def check_three_steps(
    module: Any, optimizer: Any, plain: Any, expected: Any, args: Any, whole: Any
) -> None:
    """Takes three steps of a planned module and of a plain one, each with its optimizer and a
    scheduler: losses, parameters, buffers and states have to be equal bit for bit, and the bytes of
    both memories as they were predicted."""
    measured = Measured(module)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (expected, optimizer)]
    for number in range(3):
        wanted = loss(plain(*args))
        wanted.backward()
        peak = measured.peak(args)
        for each in (expected, optimizer):
            each.step()
            each.zero_grad()
        for schedule in schedules:
            schedule.step()
        assert torch.equal(measured.value, wanted)
        assert peak == (whole.peak if number else whole.first_peak)
    assert alike(dict(module.state_dict()), dict(plain.state_dict()))
    assert alike(optimizer.state_dict(), expected.state_dict())
    assert optimizer.slow_bytes == whole.slow
