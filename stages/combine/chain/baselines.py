"""What `rotor` is compared with (S 2.5): segments of equal length, and revolve, which stores the
inputs of positions alone.

`sequential` is that of Chen et al. (2016), as `torch.utils.checkpoint.checkpoint_sequential` does
it: the input of each segment stays, and right before its backwards its forwards run once more, but
for the last segment, which keeps everything. `revolve` is that of Griewank and Walther (2000) for
positions of any sizes and times, made valid for training: each backward comes right after a forward
of its position that keeps what it reads (Herrmann et al. 2019, appendix C).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.dp_table import checkpoint_operations
from tightfit.stages.combine.chain.frontier import (
    ChainPlan,
    ChainProgram,
    ProgramFrontier,
    keep_all_sequence,
)
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.util.strategies import BUDGET_SLOTS


def most_segments(length: int) -> int:
    """The most segments that a chain of so many positions without the loss is cut into: twice the
    square root, which is the best number for alike positions (S 2.5)."""
    return max(min(length, math.ceil(2 * math.sqrt(length))), 1)


def segmented_sequence(length: int, segments: int) -> list[ChainOperation]:
    """Positions 1..length in `segments` parts of equal length, the last with what is left, and the
    loss behind them. Each part but the last keeps its input, and runs again."""
    size = length // segments
    starts = [1 + size * number for number in range(segments)]
    ends = [*(start - 1 for start in starts[1:]), length]
    operations: list[ChainOperation] = []
    for first, last in zip(starts[:-1], ends[:-1], strict=True):
        operations += checkpoint_operations(first, last)
    forward = [ChainOperation("F_all", position) for position in range(starts[-1], length + 1)]
    operations += [*forward, ChainOperation("loss", length + 1)]
    for number, (first, last) in enumerate(zip(reversed(starts), reversed(ends), strict=True)):
        own = range(first, last + 1)
        again = [ChainOperation("F_all", position) for position in own] if number else []
        operations += [*again, *(ChainOperation("B", position) for position in reversed(own))]
    return operations


class SegmentedChainPlans:
    """The plans of `sequential`, one for each number of segments, of positions that keep everything
    or nothing."""

    slots = 0
    kind = "sequential"
    solver = "segments of equal length"

    def __init__(self, ways: ChainProblem) -> None:
        length = len(ways) - 1
        self.plans = [
            ChainPlan.of_chain(ways, segmented_sequence(length, segments))
            for segments in range(1, most_segments(length) + 1)
        ]
        self.keep_all = self.plans[0]

    @property
    def smallest_budget(self) -> int:
        """The least bytes that any number of segments needs."""
        return min(plan.peak for plan in self.plans)

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes; None where no number of segments fits."""
        fitting = [plan for plan in self.plans if plan.peak <= budget]
        return min(fitting, key=lambda plan: (plan.seconds, plan.peak), default=None)

    def bound(self, budget: int) -> float:
        """Seconds that no number of segments within `budget` bytes beats."""
        fitting = self.within(budget)
        return math.inf if fitting is None else fitting.seconds

    def rounded(self, budget: int) -> float:
        """The same: no size is rounded."""
        return self.bound(budget)


def restrict_to_inputs(ways: ChainProblem) -> ChainProblem:
    """A chain whose positions, but for the loss, are kept only from a forward to the backward that
    follows at once."""
    *positions, loss = ways.positions
    restricted = [
        replace(one, ways=[replace(way, at_once=True) for way in one.ways]) for one in positions
    ]
    return replace(ways, positions=[*restricted, loss])


def checkpointed_sequence(length: int) -> Iterator[ChainOperation]:
    """Every input of positions 1..length stays, and each of them runs twice."""
    yield from (ChainOperation("F_ck", position) for position in range(1, length + 1))
    yield ChainOperation("loss", length + 1)
    for position in range(length, 0, -1):
        yield from (ChainOperation("F_all", position), ChainOperation("B", position))


class RevolveProgram(ChainProgram):
    """The dynamic program of a chain that stores inputs alone."""

    def keep_all(self) -> list[ChainOperation]:
        """The sequence that runs the least again: every input is stored."""
        return list(checkpointed_sequence(self.positions - 1))


class RevolveFrontier(ProgramFrontier):
    """Plans of a chain that stores inputs alone; its `keep_all` is that of this class, and stores
    every one of them."""

    def __init__(self, ways: ChainProblem, slots: int = BUDGET_SLOTS) -> None:
        super().__init__(RevolveProgram(restrict_to_inputs(ways), "revolve"), slots)


class RevolveChainPlans:
    """The plans of `revolve`, of positions that keep everything or nothing."""

    kind = "revolve"

    def __init__(self, ways: ChainProblem, slots: int) -> None:
        self.slots = slots
        self.frontier = RevolveFrontier(ways, slots)
        self.solver = self.frontier.solver
        self.keep_all = ChainPlan.of_chain(ways, keep_all_sequence(ways))

    @property
    def smallest_budget(self) -> int:
        """The least bytes that any of its sequences needs."""
        return self.frontier.smallest_budget

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes; None where no sequence fits."""
        return self.frontier.within(budget)

    def bound(self, budget: int) -> float:
        """Seconds that none of its sequences within `budget` bytes beats."""
        stored = self.frontier.keep_all
        return stored.seconds if budget >= stored.peak else self.frontier.bound(budget)

    def rounded(self, budget: int) -> float:
        """The optimum, in seconds, of sizes as they are rounded."""
        return self.frontier.rounded(budget)
