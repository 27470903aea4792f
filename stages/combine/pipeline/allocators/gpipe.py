"""GPipe (Huang et al. 2019): all batches of a flush go forward, then all go backward.

A stage stores all M batches of a flush. Over tasks (stages and transfers) that take f forward and b
backward, M alike batches take `sum f + (M - 1) max f` forward and as much backward, the least where
the last stage goes backward only behind its last forward. Of all contiguous allocations that fit
the one with the least sum is taken: labels (largest f, largest b, ticks of the cuts) of the stages
up to a layer, of which none is kept that another is not above in any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tightfit.stages.combine.pipeline.allocation import Allocation, PatternTiming, Stage
from tightfit.stages.combine.pipeline.allocator import AllocationProblem, AllocationResult
from tightfit.stages.combine.pipeline.contiguous import min_period_partition
from tightfit.stages.combine.pipeline.layers import NO_LIMIT, PipelineLayers
from tightfit.util.strategies import ALLOCATORS

BATCHES_A_DEVICE = 4
"""Batches of a flush for each device: from so many on devices wait little (Huang et al. 2.3)."""


class GPipe:
    """The contiguous allocation with the shortest flush."""

    about = ALLOCATORS["gpipe"]

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        """The best contiguous allocation that stores all batches of a flush, None where none
        does."""
        batches = instance.microbatches or BATCHES_A_DEVICE * len(instance.names)
        stages = _FlushPartition(instance, batches).stages()
        if stages is None:
            return None
        allocation = Allocation(instance.layers, stages, instance.names)
        timing = schedule_flush(allocation, batches)
        return AllocationResult(
            allocation, timing, timing.period / batches, f"labels, {batches} batches a flush"
        )


STRATEGY = GPipe()


def schedule_flush(allocation: Allocation, batches: int) -> PatternTiming:
    """The timing of so many batches that all go forward and then all backward, and of the next ones
    behind them."""
    tasks = allocation.tasks
    there, back = max(task.forward for task in tasks), max(task.backward for task in tasks)
    forward = [0, *accumulate(task.forward for task in tasks)]
    turn = forward[-1] + (batches - 1) * there
    behind = [0, *accumulate(task.backward for task in reversed(tasks))]
    backward = [turn + ticks for ticks in behind[-2::-1]]
    end = turn + behind[-1] + (batches - 1) * back
    return PatternTiming(max(end, 1), forward[:-1], backward, batches, 1, (there, back))


@dataclass(frozen=True)
class _StageLabel:
    """Stages up to a layer: the ticks of their slowest task forward and backward, those of their
    cuts, and the last stage's first layer with what is ahead of it."""

    forward: int
    backward: int
    cuts: int
    first: int
    before: _StageLabel | None

    def is_above(self, other: _StageLabel) -> bool:
        """Whether another is as good in all."""
        return (
            other.forward <= self.forward
            and other.backward <= self.backward
            and other.cuts <= self.cuts
        )


class _FlushPartition:
    """The program of one instance: labels by the number of stages and their last layer."""

    def __init__(self, instance: AllocationProblem, batches: int) -> None:
        self.layers: PipelineLayers = instance.layers
        self.memory, self.batches = instance.memory, batches
        self.devices = min(len(instance.names), self.layers.count)
        self.there = [0, *accumulate(self.layers.forward[1:].tolist())]
        self.back = [0, *accumulate(self.layers.backward[1:].tolist())]
        self.least = (self._least(self.there), self._least(self.back))
        self.best: _StageLabel | None = None
        self.ticks = self._balanced_ticks(instance)

    def stages(self) -> tuple[Stage, ...] | None:
        """The stages of the best allocation, None where none fits."""
        labels: dict[int, list[_StageLabel]] = {0: [_StageLabel(0, 0, 0, 0, None)]}
        for _ in range(self.devices):
            found: dict[int, list[_StageLabel]] = {}
            for before, own in labels.items():
                for last in range(before + 1, self.layers.count + 1):
                    if self.layers.memory(before + 1, last, self.batches) <= self.memory:
                        for label in self._extended(own, before + 1, last):
                            _insert_label(found.setdefault(last, []), label)
            for label in found.pop(self.layers.count, []):
                if self.best is None or self._ticks(label) < self._ticks(self.best):
                    self.best, self.ticks = label, min(self.ticks, self._ticks(label))
            labels = found
        return None if self.best is None else tuple(self._unrolled(self.best))

    def _extended(self, labels: list[_StageLabel], first: int, last: int) -> Iterator[_StageLabel]:
        """Labels with a further stage, and the cut ahead of it, that can still be the best."""
        there = self.there[last] - self.there[first - 1]
        back = self.back[last] - self.back[first - 1]
        send = int(self.layers.send[first - 1]) if first > 1 else 0
        receive = int(self.layers.receive[first - 1]) if first > 1 else 0
        for label in labels:
            after = _StageLabel(
                max(label.forward, there, send),
                max(label.backward, back, receive),
                label.cuts + send + receive,
                first,
                label,
            )
            if self._ticks(after) <= self.ticks:
                yield after

    def _ticks(self, label: _StageLabel) -> int:
        """The ticks beyond those of all layers that a flush has at least, whatever follows."""
        slowest = max(label.forward, self.least[0]) + max(label.backward, self.least[1])
        return label.cuts + (self.batches - 1) * slowest

    def _least(self, sums: list[int]) -> int:
        """The ticks of the slowest stage at least: of the largest layer, or a fair share."""
        largest = max(after - before for before, after in pairwise(sums))
        return max(largest, -(-sums[-1] // self.devices))

    def _balanced_ticks(self, instance: AllocationProblem) -> int:
        """The ticks of an allocation of balanced loads, which the best one does not exceed if it
        fits; else more than any takes."""
        balanced = min_period_partition(self.layers.without_memory(), instance.names, NO_LIMIT)
        assert balanced is not None, "one stage takes everything where memory has no limit"
        stages = balanced[1].stages
        allocation = Allocation(self.layers, stages, instance.names)
        if any(
            self.layers.memory(stage.first, stage.last, self.batches) > self.memory
            for stage in stages
        ):
            return self.layers.max_ticks * (self.batches + 1)
        tasks = allocation.tasks
        cuts = sum(task.load for task in tasks if task.transfer)
        slowest = max(task.forward for task in tasks) + max(task.backward for task in tasks)
        return cuts + (self.batches - 1) * slowest

    def _unrolled(self, label: _StageLabel) -> list[Stage]:
        firsts = []
        at: _StageLabel | None = label
        while at is not None and at.before is not None:
            firsts.append(at.first)
            at = at.before
        firsts.reverse()
        lasts = [*(first - 1 for first in firsts[1:]), self.layers.count]
        return [
            Stage(first, last, device)
            for device, (first, last) in enumerate(zip(firsts, lasts, strict=True))
        ]


def _insert_label(labels: list[_StageLabel], label: _StageLabel) -> None:
    """Keeps a label unless another is as good in all, and drops those that it is as good as."""
    if any(label.is_above(other) for other in labels):
        return
    labels[:] = [other for other in labels if not other.is_above(label)]
    labels.append(label)
