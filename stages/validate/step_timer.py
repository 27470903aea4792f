"""Times single steps of a model, in this process or in one of its own.

On the CPU the time of a step is that for which a processor ran the calling thread, and what it
waited for transfers: other work hardly changes it. The other threads of an operator run as long at
the same time, and sleep in between where `OMP_WAIT_POLICY` is passive. On a GPU it is the time on
the clock, without what other work took.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from tightfit.stages.torch_utils.devices import synchronize_device
from tightfit.stages.torch_utils.model_factory import Sample
from tightfit.stages.torch_utils.timing import HostClock
from tightfit.stages.validate.training_step import StepRunner, clear_gradients
from tightfit.stages.validate.transfer_check import last_transfers
from tightfit.util.allocators import hold_heap_pages
from tightfit.util.child_process import RemoteObject


@dataclass
class StepTimer:
    """Times steps of a module that has run; `.grad` is None before each. `seconds` are those of its
    steps, and `waits` what each waited for transfers, which they contain. The room of a loss is
    written to, as a loss writes."""

    module: nn.Module
    stepper: StepRunner
    sample: Sample
    device: str
    seconds: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    _clock: HostClock = field(default_factory=HostClock)

    def time_step(self) -> float:
        """The seconds of a step; garbage is not collected meanwhile."""
        stepper, spent = replace(self.stepper, fill_loss_room=self.on_cpu), 0.0

        def step() -> Any:
            nonlocal spent
            begin = time.thread_time()
            alive = stepper.run(self.module, self.sample)
            spent = time.thread_time() - begin
            synchronize_device(self.device)
            return alive

        clear_gradients(self.module, self.sample)
        synchronize_device(self.device)
        collecting = gc.isenabled()
        gc.disable()
        try:
            seconds = self._clock(step)
        finally:
            if collecting:
                gc.enable()
        clear_gradients(self.module, self.sample)
        moved = last_transfers(self.module)
        if moved is not None:
            self.waits.append(moved.waited)
        if self.on_cpu:
            seconds = spent + (0.0 if moved is None else moved.waited)
        self.seconds.append(seconds)
        return seconds

    def renewed(self, module: nn.Module | None = None) -> StepTimer:
        """A timer of this module, or of another one, that has timed no step."""
        return StepTimer(module or self.module, self.stepper, self.sample, self.device)

    @property
    def on_cpu(self) -> bool:
        """Whether the module is on the CPU."""
        return self.device.startswith("cpu")

    @property
    def lost(self) -> float:
        """The part of the time on the clock that other work took."""
        return self._clock.share


class RemoteStepTimer:
    """Times steps in a process of its own, whose heap keeps its pages. It makes the timer and runs
    a step that does not count when a step is first asked for."""

    def __init__(self, make: Callable[[], StepTimer]) -> None:
        self._heap = contextlib.ExitStack()  # of that process, for as long as it lives
        self._remote = RemoteObject(lambda: self._warm_timer(make))

    def _warm_timer(self, make: Callable[[], StepTimer]) -> StepTimer:
        self._heap.enter_context(hold_heap_pages())
        timer = make()
        timer.time_step()
        return timer

    def time_step(self) -> float:
        """The seconds of a step; raises ChildError where the process has none to tell."""
        seconds = self._remote.call(StepTimer.time_step.__name__)
        assert isinstance(seconds, float)
        return seconds

    def close(self) -> None:
        """Ends the process."""
        self._remote.close()
