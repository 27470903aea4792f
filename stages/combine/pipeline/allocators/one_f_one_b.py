"""1F1B*(T) over all contiguous allocations (S 5.2.1, M 4.1): the least T at which one fits."""

from __future__ import annotations

from tightfit.stages.combine.pipeline.allocator import AllocationProblem, AllocationResult
from tightfit.stages.combine.pipeline.contiguous import min_period_partition, schedule_one_f_one_b
from tightfit.util.strategies import ALLOCATORS

SOLVER = "dynamic program, 1F1B*"


class OneFOneB:
    """The contiguous allocation with the least period that fits."""

    about = ALLOCATORS["one_f_one_b"]

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        """The best contiguous allocation, None where none fits."""
        best = min_period_partition(instance.layers, instance.names, instance.memory)
        if best is None:
            return None
        period, allocation = best
        bound = period if instance.layers.stage_options is None else instance.lower_bound
        return AllocationResult(allocation, schedule_one_f_one_b(allocation, period), bound, SOLVER)


STRATEGY = OneFOneB()
