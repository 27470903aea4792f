"""What an allocator is: one file that gives layers to devices, and a line in
`tightfit/util/strategies.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from tightfit.stages.combine.pipeline.allocation import Allocation, PatternTiming
from tightfit.stages.combine.pipeline.layers import PipelineLayers
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine
from tightfit.util.strategies import ALLOCATORS, StrategyInfo, load_strategy_module


@dataclass(frozen=True)
class AllocationProblem:
    """What is asked of an allocator: layers, the names of equal devices with `memory` bytes each,
    the ticks that a batch may take at most (`period`, None for no limit), by which an allocator may
    shorten its search, the k of k-periodic patterns (None for any), the engine that solves its
    integer programs, and the batches between two flushes (`microbatches`, None for what the
    allocator takes, or for as many that their period counts)."""

    layers: PipelineLayers
    names: tuple[str, ...]
    memory: int
    period: int | None = None
    k: int | None = None
    engine: SolverEngine = HIGHS_ENGINE
    microbatches: int | None = None

    @property
    def lower_bound(self) -> float:
        """The ticks a batch that no allocation and no pattern is below: those of the largest layer,
        and of a fair share of all of them."""
        return self.layers.least_period(len(self.names))


@dataclass(frozen=True)
class AllocationResult:
    """An allocation with its timing, and `bound`, the ticks a batch that none of the allocator's
    class is below; `clock` says that the clock ended a search, `solver` names what was used."""

    allocation: Allocation
    timing: PatternTiming
    bound: float
    solver: str
    clock: bool = False

    @property
    def ticks(self) -> float:
        """Ticks a batch."""
        return self.timing.period * self.timing.turns / self.timing.kept


class Allocator(Protocol):
    """A way to give layers to devices: the one with the fewest ticks a batch that fits."""

    @property
    def about(self) -> StrategyInfo:
        """What is known of it."""

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        """The allocator's answer, None where there is none that fits."""


def allocate_within_period(
    allocator: Allocator, instance: AllocationProblem
) -> AllocationResult | None:
    """The allocator's answer, None if nothing fits, or nothing within the period."""
    answer = allocator.allocate(instance)
    if answer is None or instance.period is None or answer.ticks <= instance.period:
        return answer
    return None


def load_allocator(name: str) -> Allocator:
    """The allocator of that name; raises ConfigError when there is none."""
    if name not in ALLOCATORS:
        known = " or ".join(ALLOCATORS)
        raise ConfigError(f"--strategy {name}: a pipeline is planned by {known}")
    return cast(Allocator, load_strategy_module(ALLOCATORS[name], f"{__package__}.allocators"))
