"""PipeDream's partition (M 2 and 5.1): contiguous, blind to memory, then scheduled by 1F1B*, as M
does to compare with it."""

from __future__ import annotations

from tightfit.stages.combine.pipeline.allocation import Allocation
from tightfit.stages.combine.pipeline.allocator import AllocationProblem, AllocationResult
from tightfit.stages.combine.pipeline.contiguous import (
    min_one_f_one_b_period,
    min_period_partition,
    schedule_one_f_one_b,
)
from tightfit.stages.combine.pipeline.layers import NO_LIMIT
from tightfit.util.strategies import ALLOCATORS


class Pipedream:
    """Balances the load of contiguous stages and links."""

    about = ALLOCATORS["pipedream"]

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        """The partition with the least period, at the least one that memory allows it."""
        found = min_period_partition(instance.layers.without_memory(), instance.names, NO_LIMIT)
        assert found is not None, "one stage takes everything where memory has no limit"
        bound, blind = found
        allocation = Allocation(instance.layers, blind.stages, instance.names)
        period = min_one_f_one_b_period(allocation, instance.memory)
        if period is None:
            return None
        timing = schedule_one_f_one_b(allocation, period)
        return AllocationResult(allocation, timing, bound, "dynamic program, 1F1B*")


STRATEGY = Pipedream()
