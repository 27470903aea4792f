"""1F1B*(T) over all contiguous allocations (S 5.2.1, M 4.1): the least T at which one fits."""

from __future__ import annotations

from tightfit.schemas.allocators import ALLOCATORS
from tightfit.stages.combine.allocate.allocator import AllocationInstance, Answer
from tightfit.stages.combine.allocate.contiguous import least_feasible, least_peak_at
from tightfit.stages.combine.allocate.groups import one_f_one_b

SOLVER = "dynamic program, 1F1B*"


class OneFOneB:
    """The contiguous allocation with the least period that fits; at a period that is asked, the one
    whose fullest device stores the fewest bytes."""

    about = ALLOCATORS["one_f_one_b"]

    def allocate(self, instance: AllocationInstance) -> Answer | None:
        """The best contiguous allocation, None where none fits."""
        best = least_feasible(instance.layers, instance.names, instance.memory)
        if best is None:
            return None
        period, allocation = best
        bound = period if instance.layers.menu is None else instance.lower_bound
        if instance.period is not None:
            asked = least_peak_at(instance.layers, instance.names, instance.memory, instance.period)
            if asked is None:
                return None
            return Answer(asked, one_f_one_b(asked, instance.period), bound, SOLVER)
        return Answer(allocation, one_f_one_b(allocation, period), bound, SOLVER)


ALLOCATOR = OneFOneB()
