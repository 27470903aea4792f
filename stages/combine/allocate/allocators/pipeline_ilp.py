"""Allocation and 1-periodic schedule by integer programming (S ch. 6).

One program gives layers to devices with the least load, another schedules an allocation layer by
layer. An allocation that cannot be scheduled any faster is excluded, until no other one has a load
below the best schedule.
"""

from __future__ import annotations

from dataclasses import replace

from tightfit.schemas.allocators import ALLOCATORS
from tightfit.schemas.engines import TITLES
from tightfit.stages.combine.allocate.allocation import Allocation
from tightfit.stages.combine.allocate.allocator import AllocationInstance, Answer
from tightfit.stages.combine.allocate.allocators.madpipe import ALLOCATOR as MADPIPE
from tightfit.stages.combine.allocate.assignment import assign
from tightfit.stages.combine.allocate.integer import MARGIN, IntegerLimits
from tightfit.stages.combine.allocate.periodic import schedule

ALLOCATIONS = 400
"""Allocations that are tried at most."""
LIMITS = (
    IntegerLimits(nodes=100_000, checks=2_000, seconds=60.0),
    IntegerLimits(nodes=20_000, checks=2_000, seconds=30.0),
)
"""Those of an assignment, and of a schedule."""


class PipelineIlp:
    """Starts from MadPipe's answer, and ends with a bound."""

    about = ALLOCATORS["pipeline_ilp"]

    def allocate(self, instance: AllocationInstance) -> Answer | None:
        """The best allocation and schedule found, None where none fits."""
        layers, names, memory = instance.layers, instance.names, instance.memory
        assigning, scheduling = (replace(each, engine=instance.engine) for each in LIMITS)
        start = MADPIPE.allocate(replace(instance, period=None))
        best = None if start is None else (start.allocation, start.timing)
        # Far above what one device takes for all, or the margin of a bound would rule that out.
        below = 2 * max(layers.all_ticks, 1) if best is None else best[1].period
        bound, clock = float(below), False
        excluded: list[Allocation] = []
        while len(excluded) < ALLOCATIONS and below > instance.lower_bound:
            if instance.period is not None and best and best[1].period <= instance.period:
                bound = min(bound, instance.lower_bound)
                break
            found = assign(layers, names, memory, below, excluded, assigning)
            clock = clock or found.clock
            if found.allocation is None or found.bound >= below * (1 - 2 * MARGIN):
                bound = min(bound, found.bound)
                break
            whole = schedule(found.allocation, memory, below, scheduling)
            if whole.timing is not None:
                best, below = (found.allocation, whole.timing), whole.timing.period
            parts = found.allocation.layer_by_layer()
            split = schedule(parts, memory, below, scheduling)
            if split.timing is not None:
                best, below = (parts, split.timing), split.timing.period
            clock = clock or whole.clock or split.clock
            bound = min(bound, split.bound)
            excluded.append(found.allocation)
        else:
            bound = min(bound, instance.lower_bound)
        if best is None or (instance.period is not None and best[1].period > instance.period):
            return None
        bound = max(min(bound, best[1].period), instance.lower_bound)
        return Answer(*best, bound, f"{TITLES[instance.engine]}, integer programs", clock)


ALLOCATOR = PipelineIlp()
