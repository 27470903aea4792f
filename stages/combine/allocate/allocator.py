"""What an allocator is: one file that gives layers to devices, and a line in
`schemas/allocators.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tightfit.schemas.allocators import AllocatorAbout
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.stages.combine.allocate.allocation import Allocation, Timing
from tightfit.stages.combine.allocate.layers import Layers


@dataclass(frozen=True)
class AllocationInstance:
    """What is asked of an allocator: layers, the names of equal devices with `memory` bytes each,
    the ticks that a batch is to take (`period`, None for the fewest), the k of k-periodic patterns
    (None for any), and the engine that solves its integer programs."""

    layers: Layers
    names: tuple[str, ...]
    memory: int
    period: int | None = None
    k: int | None = None
    engine: Engine = HIGHS

    @property
    def lower_bound(self) -> float:
        """The ticks a batch that no allocation and no pattern is below: those of the largest layer,
        and of a fair share of all of them."""
        return self.layers.least_period(len(self.names))


@dataclass(frozen=True)
class Answer:
    """An allocation with its timing, and `bound`, the ticks a batch that none of the allocator's
    class is below; `clock` says that the clock ended a search, `solver` names what was used."""

    allocation: Allocation
    timing: Timing
    bound: float
    solver: str
    clock: bool = False

    @property
    def ticks(self) -> float:
        """Ticks a batch."""
        return self.timing.period * self.timing.turns / self.timing.kept


class Allocator(Protocol):
    """A way to give layers to devices."""

    @property
    def about(self) -> AllocatorAbout:
        """What is known of it."""

    def allocate(self, instance: AllocationInstance) -> Answer | None:
        """The allocator's answer, None where there is none that fits."""
