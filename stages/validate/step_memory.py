"""The memory of single steps, as a comparison runs them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tightfit.stages.torch_utils.memory_meter import MemoryUsage, memory_session

_BEGIN, _BACKWARD, _END = "begin", "backward", "end"


@dataclass
class StepMemory:
    """What a step takes of a device above what was allocated when it began.

    `fresh` is that of a step where `.grad` is None when it begins; it ends while the output and
    what it received are still held. `accumulate_peak` is the most bytes of a step that finds
    `.grad` there: its forward is that of the fresh step, since a forward has no use for `.grad`.
    Both are None until the steps have run that tell them.
    """

    device: str
    fresh: MemoryUsage | None = None
    accumulate_peak: int | None = None
    _forward: MemoryUsage | None = None

    @contextlib.contextmanager
    def of_fresh_step(self) -> Iterator[Callable[[], None]]:
        """Within it a step runs, which calls what this yields between forward and backward."""
        gc.collect()
        with memory_session(self.device, lines=True) as running:
            running.mark(_BEGIN)
            yield lambda: running.mark(_BACKWARD)
            running.mark(_END)
        self.fresh = running.usage(_BEGIN, _END)
        self._forward = running.usage(_BEGIN, _BACKWARD)

    @contextlib.contextmanager
    def of_two_steps(self) -> Iterator[Callable[[], None]]:
        """Within it two forwards run, and then their backwards, the second of which finds `.grad`
        there: what this yields is called when that begins and when it has ended."""
        labels = iter((_BACKWARD, _END))
        with memory_session(self.device) as running:
            yield lambda: running.mark(next(labels))
        if self._forward is not None:
            backward = running.usage(_BACKWARD, _END).peak
            self.accumulate_peak = max(self._forward.peak, self._forward.net + backward)


def fresh_memory(memory: StepMemory) -> MemoryUsage:
    """What a step takes that begins without `.grad`, after it has run."""
    assert memory.fresh is not None
    return memory.fresh
