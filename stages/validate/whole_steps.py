"""Whole training steps, each of some microbatches, of a module with its optimiser."""

from __future__ import annotations

import contextlib
import gc
import time
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tightfit.schemas.telling import Doing
from tightfit.stages.device.devices import wait_for
from tightfit.stages.device.factory import Sample
from tightfit.stages.device.meter import Usage, session
from tightfit.stages.validate.measure import TIMING
from tightfit.stages.validate.step import Stepper


@dataclass
class Steps:
    """Whole training steps of a module with its optimiser, of some microbatches each; `held` is
    what the last one left with the caller. Those that are measured are `told` by a `name`."""

    stepper: Stepper
    sample: Sample
    module: nn.Module
    optimizer: Any
    name: str
    told: Doing
    microbatches: int = 1
    held: list[Any] = field(default_factory=list)

    def run(self) -> None:
        """One step."""
        for number in range(self.microbatches):
            self.microbatch(number)

    def microbatch(self, number: int) -> None:
        """One microbatch; the last one ends the step."""
        self.held = []
        last = number == self.microbatches - 1
        with contextlib.nullcontext() if last else waiting(self.optimizer):
            self.held = [self.stepper.run(self.module, self.sample)]
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def usages(self, device: str) -> list[Usage]:
        """The memory of each microbatch of a step above what was there when it began, with what the
        caller holds of it."""
        found = []
        for number in range(self.microbatches):
            self.held = []
            self.told(f"the memory of {self.name}")
            gc.collect()
            with session(device, lines=True) as running, running.section("step"):
                self.microbatch(number)
            self.held = []
            found.append(running.section_usage("step"))
        return found

    def seconds(self, device: str) -> float:
        """The time of one step."""
        self.held = []
        self.told(TIMING)
        wait_for(device)
        begin = time.perf_counter()
        self.run()
        wait_for(device)
        seconds = time.perf_counter() - begin
        self.held = []
        return seconds

    @property
    def waited(self) -> float:
        """Seconds for which its steps have waited for the other memory so far."""
        found: float = getattr(self.optimizer, "waited_seconds", 0.0)
        return found


def waiting(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Within it gradients of microbatches add up, as they do anyway in a plain step."""
    if not hasattr(optimizer, "accumulating"):
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[None] = optimizer.accumulating()
    return found
