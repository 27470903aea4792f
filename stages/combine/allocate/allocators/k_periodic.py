"""k-periodic patterns (S 5.2.2): 1F1B* with every (k+1)-th batch left out. It stores fewer batches
of the stages that had more than k in flight, and takes (k+1)/k of the period."""

from __future__ import annotations

from schemas.allocators import ALLOCATORS
from stages.combine.allocate.allocator import Answer, Request
from stages.combine.allocate.contiguous import ALL, Kept, least_feasible, partition
from stages.combine.allocate.groups import one_f_one_b
from stages.combine.allocate.layers import NO_LIMIT


class KPeriodic:
    """The best of 1F1B* and of its patterns with k of k+1 batches, over contiguous allocations."""

    about = ALLOCATORS["k_periodic"]

    def allocate(self, request: Request) -> Answer | None:
        """The contiguous allocation and the k with the fewest ticks a batch."""
        blind = least_feasible(request.layers.without_memory(), request.names, NO_LIMIT)
        assert blind is not None, "one stage takes everything where memory has no limit"
        bound = blind[0] if request.layers.menu is None else request.lower_bound
        answers = [answer for kept in _choices(request) if (answer := _with(request, kept, bound))]
        return min(answers, key=lambda answer: answer.ticks, default=None)


def _choices(request: Request) -> list[Kept]:
    """All batches, or k of k+1. No more than 2P - 1 groups pay, one for each stage and link."""
    if request.k is not None:
        return [Kept(request.k, request.k + 1)]
    devices = min(len(request.names), request.layers.count)
    return [ALL, *(Kept(k, k + 1) for k in range(1, 2 * devices - 1))]


def _with(request: Request, kept: Kept, bound: float) -> Answer | None:
    if request.period is None:
        found = least_feasible(request.layers, request.names, request.memory, kept)
    else:
        period = request.period * kept.kept // kept.turns
        asked = partition(request.layers, request.names, request.memory, period, kept)
        found = None if asked is None else (period, asked)
    if found is None:
        return None
    period, allocation = found
    timing = one_f_one_b(allocation, period, kept.kept, kept.turns)
    return Answer(allocation, timing, bound, f"dynamic program, 1F1B*, {kept.kept} of {kept.turns}")


ALLOCATOR = KPeriodic()
