"""PipeDream's partition (M 2 and 5.1): contiguous, blind to memory, then scheduled by 1F1B*, as M
does to compare with it."""

from __future__ import annotations

from tightfit.schemas.allocators import ALLOCATORS
from tightfit.stages.combine.allocate.allocation import Allocation
from tightfit.stages.combine.allocate.allocator import AllocationInstance, Answer
from tightfit.stages.combine.allocate.contiguous import least_feasible
from tightfit.stages.combine.allocate.groups import fits_at, least_period, one_f_one_b
from tightfit.stages.combine.allocate.layers import NO_LIMIT


class Pipedream:
    """Balances the load of contiguous stages and links."""

    about = ALLOCATORS["pipedream"]

    def allocate(self, instance: AllocationInstance) -> Answer | None:
        """The partition with the least period, at the least one that memory allows it."""
        found = least_feasible(instance.layers.without_memory(), instance.names, NO_LIMIT)
        assert found is not None, "one stage takes everything where memory has no limit"
        bound, blind = found
        allocation = Allocation(instance.layers, blind.stages, instance.names)
        period = instance.period
        if period is None:
            period = least_period(allocation, instance.memory)
        elif not fits_at(allocation, instance.memory, period):
            return None
        if period is None:
            return None
        timing = one_f_one_b(allocation, period)
        return Answer(allocation, timing, bound, "dynamic program, 1F1B*")


ALLOCATOR = Pipedream()
