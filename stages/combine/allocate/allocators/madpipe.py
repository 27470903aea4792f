"""MadPipe (M 4.2, S ch. 7): a dynamic program with one special device, the search for a period, the
schedule by an integer program."""

from __future__ import annotations

from dataclasses import replace

from tightfit.schemas.allocators import ALLOCATORS
from tightfit.schemas.engines import TITLES
from tightfit.stages.combine.allocate.allocation import Stage
from tightfit.stages.combine.allocate.allocator import AllocationInstance, Answer
from tightfit.stages.combine.allocate.allocators.one_f_one_b import ALLOCATOR as CONTIGUOUS
from tightfit.stages.combine.allocate.integer import IntegerLimits
from tightfit.stages.combine.allocate.menu import InnerPlan
from tightfit.stages.combine.allocate.periodic import schedule
from tightfit.stages.combine.allocate.special import allocations

SCHEDULES = 4
"""Allocations of the program that are scheduled, the shortest periods first."""
LIMITS = IntegerLimits(nodes=1_000, checks=300, seconds=10.0)


class Madpipe:
    """The best schedule of the program's allocations, and no worse than the contiguous one."""

    about = ALLOCATORS["madpipe"]

    def allocate(self, instance: AllocationInstance) -> Answer | None:
        """The best allocation found, None where none fits. Where stages may compute again, it is
        no worse than where they may not."""
        answers = [self._best(instance)]
        if instance.layers.menu is not None:
            keeping = replace(instance.layers, menu=None)
            answers.append(self._best(replace(instance, layers=keeping)))
        found = [answer for answer in answers if answer is not None]
        best = min(found, key=lambda answer: answer.ticks, default=None)
        return None if best is None else replace(best, bound=instance.lower_bound)

    def _best(self, instance: AllocationInstance) -> Answer | None:
        layers, memory = instance.layers, instance.memory
        limits = replace(LIMITS, engine=instance.engine)
        contiguous = CONTIGUOUS.allocate(replace(instance, period=None))
        best = None if contiguous is None else (contiguous.allocation, contiguous.timing)
        below = max(layers.longest, 1) + 1 if best is None else best[1].period
        if instance.period is not None:
            below = min(below, instance.period + 1)
        clock = False
        seen: set[tuple[tuple[Stage, ...], tuple[InnerPlan, ...]]] = set()
        for least, allocation in allocations(layers, instance.names, memory, below):
            key = (allocation.stages, allocation.inner)
            if least >= below or len(seen) == SCHEDULES or key in seen:
                continue
            seen.add(key)
            found = schedule(allocation, memory, below, limits)
            clock = clock or found.clock
            if found.timing is not None:
                best, below = (allocation, found.timing), found.timing.period
        if best is None or (instance.period is not None and best[1].period > instance.period):
            return None
        solver = f"dynamic program, {TITLES[instance.engine] if seen else '1F1B*'}"
        return Answer(*best, instance.lower_bound, solver, clock)


ALLOCATOR = Madpipe()
