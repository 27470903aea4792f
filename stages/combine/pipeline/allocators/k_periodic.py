"""k-periodic patterns (S 5.2.2): 1F1B* with every (k+1)-th batch left out. Such a pattern stores
fewer batches of the stages that had more than k in flight, and takes (k+1)/k of the period."""

from __future__ import annotations

from tightfit.stages.combine.pipeline.allocator import AllocationProblem, AllocationResult
from tightfit.stages.combine.pipeline.contiguous import (
    ALL_BATCHES,
    BatchFraction,
    min_period_partition,
    schedule_one_f_one_b,
)
from tightfit.stages.combine.pipeline.layers import NO_LIMIT
from tightfit.util.strategies import ALLOCATORS


class KPeriodic:
    """The best of 1F1B* and of its patterns with k of k+1 batches, over contiguous allocations."""

    about = ALLOCATORS["k_periodic"]

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        """The contiguous allocation and the k with the fewest ticks a batch."""
        blind = min_period_partition(instance.layers.without_memory(), instance.names, NO_LIMIT)
        assert blind is not None, "one stage takes everything where memory has no limit"
        bound = blind[0] if instance.layers.stage_options is None else instance.lower_bound
        answers = [
            answer
            for kept in _batch_fractions(instance)
            if (answer := _allocate_fraction(instance, kept, bound))
        ]
        return min(answers, key=lambda answer: answer.ticks, default=None)


def _batch_fractions(instance: AllocationProblem) -> list[BatchFraction]:
    """All batches, or k of k+1. No more than 2P - 1 groups pay, one for each stage and link."""
    if instance.k is not None:
        return [BatchFraction(instance.k, instance.k + 1)]
    devices = min(len(instance.names), instance.layers.count)
    return [ALL_BATCHES, *(BatchFraction(k, k + 1) for k in range(1, 2 * devices - 1))]


def _allocate_fraction(
    instance: AllocationProblem, kept: BatchFraction, bound: float
) -> AllocationResult | None:
    found = min_period_partition(instance.layers, instance.names, instance.memory, kept)
    if found is None:
        return None
    period, allocation = found
    timing = schedule_one_f_one_b(allocation, period, kept.kept, kept.turns)
    return AllocationResult(
        allocation, timing, bound, f"dynamic program, 1F1B*, {kept.kept} of {kept.turns}"
    )


STRATEGY = KPeriodic()
