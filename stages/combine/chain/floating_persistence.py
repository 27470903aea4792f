"""The dynamic program over segments of a short chain whose last stored output may move on.

`C(s, t, l, m)` is the least time of the backwards from t down to l, from the output of s - 1, which
m does not count, within m bytes (S Theorem 5, eq. 2.4-2.8, mended). As printed it lacks the case
that the output moves to l before l keeps everything, and counts the output of s - 1 where a larger
one has taken its place. Here the output moves one position at a time, so that both are the same
case. No size is rounded: each C is kept with all budgets at which it falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.dp_table import (
    SegmentSteps,
    checkpoint_operations,
    position_operations,
    unroll_segments,
)
from tightfit.stages.combine.chain.frontier import (
    ChainPlan,
    ChainPlans,
    ProgramFrontier,
    keep_all_sequence,
)
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption
from tightfit.util.errors import ConfigError

BackwardSegment = tuple[int, int, int]
"""s, t and l of the docstring above, where l is `low`."""


@dataclass(frozen=True)
class TimeStaircase:
    """The least seconds by memory: `seconds[i]` from `bytes[i]` on, strictly falling."""

    bytes: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    def at(self, budget: int) -> float:
        """The least seconds within a budget."""
        place = int(np.searchsorted(self.bytes, budget, side="right"))
        return float(self.seconds[place - 1]) if place else np.inf

    def within(self, need: int, more: int, seconds: float) -> TimeStaircase:
        """The same with `more` bytes beside, not below `need` bytes, and with further seconds."""
        return TimeStaircase(np.maximum(self.bytes + more, need), self.seconds + seconds)


@dataclass(frozen=True)
class _FirstMove:
    """What comes first, with `need` bytes and `seconds` of its own, and what follows it: segments
    with the bytes that are stored beside each."""

    operations: tuple[ChainOperation, ...]
    need: int
    seconds: float
    segments: tuple[tuple[BackwardSegment, int], ...]
    backward: ChainOperation | None = None


class FloatingProgram:
    """The program of a chain whose positions keep everything or nothing."""

    def __init__(self, ways: ChainProblem) -> None:
        self.ways = ways
        self.last = len(ways)
        gradients = [ways.at(position).gradient for position in range(self.last, 0, -1)]
        self.done = [*accumulate(gradients, initial=0)][::-1]
        self.table: dict[BackwardSegment, TimeStaircase] = {}
        for t in range(1, self.last + 1):
            for s in range(t, 0, -1):
                for low in range(s, t + 1):
                    self.table[s, t, low] = _lower_envelope(self._ways((s, t, low)))

    @cached_property
    def whole(self) -> TimeStaircase:
        """The least seconds of the chain by memory, `ways.throughout` counted."""
        steps = self.table[1, self.last, 1]
        return steps.within(0, self.ways.always_resident, self.ways.first_seconds)

    def sequence(self, budget: int) -> list[ChainOperation]:
        """A fastest sequence within a budget, which must be enough."""
        return unroll_segments((1, self.last, 1, budget - self.ways.always_resident), self._first)

    def _first(self, s: int, t: int, low: int, budget: int) -> SegmentSteps:
        """The first operations of a fastest sequence, with the segments that follow."""
        fitting = [
            (self._seconds(choice, budget), number, choice)
            for number, choice in enumerate(self._choices((s, t, low)))
        ]
        choice = min(fitting)[2]
        segments = ((*segment, budget - beside) for segment, beside in choice.segments)
        ended = [] if choice.backward is None else [choice.backward]
        return [*choice.operations, *segments, *ended]

    def _seconds(self, choice: _FirstMove, budget: int) -> float:
        if choice.need > budget:
            return np.inf
        inner = (self.table[segment].at(budget - beside) for segment, beside in choice.segments)
        return choice.seconds + sum(inner)

    def _ways(self, segment: BackwardSegment) -> Iterator[TimeStaircase]:
        """The least seconds of each choice by memory."""
        for choice in self._choices(segment):
            found = TimeStaircase(np.array([choice.need]), np.array([choice.seconds]))
            for inner, beside in choice.segments:
                found = _add_staircases(found, self.table[inner].within(0, beside, 0.0))
            yield found

    def _choices(self, segment: BackwardSegment) -> Iterator[_FirstMove]:
        s, t, low = segment
        if s == low:
            yield from (
                self._keep(s, t, way) for way in self.ways.at(s).ways if _may_keep(way, s, t)
            )
        else:
            yield self._move(s, t, low)
        yield from self._stores(s, t, low)

    def _keep(self, s: int, t: int, way: PositionOption) -> _FirstMove:
        """Case 1: s keeps what its backward reads."""
        forward = self.ways.at(t).delta + way.forward_peak
        backward = self.done[s] - self.done[t] + way.backward_peak
        at_once = s == t and s != self.ways.loss_position
        seconds = way.seconds - (way.output_seconds if at_once else 0.0)
        ran = position_operations(s, way.option, self.ways.loss_position, [])
        operations = [step for step in ran if isinstance(step, ChainOperation)]
        if s == t:
            return _FirstMove(tuple(operations), max(forward, backward), seconds, ())
        inner = ((s + 1, t, s + 1), way.save)
        return _FirstMove(
            (operations[0],), max(forward, backward), seconds, (inner,), operations[1]
        )

    def _move(self, s: int, t: int, low: int) -> _FirstMove:
        """Case 3, by one position: the output of s takes the place of that of s - 1. The chain's
        input stays."""
        one = self.ways.at(s)
        source = self.ways.at(s - 1).output if s > 1 else 0
        need = self.ways.at(t).delta + one.pass_peak - source * one.in_place
        inner = ((s + 1, t, low), one.output - source)
        return _FirstMove((ChainOperation("F_none", s),), need, one.pass_seconds, (inner,))

    def _stores(self, s: int, t: int, low: int) -> Iterator[_FirstMove]:
        """Case 2: the output of s - 1 waits while that of r is used for the backwards of t..u."""
        need, seconds, delta = 0, 0.0, self.ways.at(t).delta
        for r in range(s, t):
            one = self.ways.at(r)
            source = self.ways.at(r - 1).output if r > s else 0
            need = max(need, delta + source * (not one.in_place) + one.pass_peak)
            seconds += one.pass_seconds
            for u in range(max(low, r) + 1, t + 1):
                later = ((s, u - 1, low), self.done[u - 1] - self.done[t])
                inner = ((r + 1, t, u), one.output)
                yield _FirstMove(tuple(checkpoint_operations(s, r)), need, seconds, (inner, later))


def _may_keep(way: PositionOption, s: int, t: int) -> bool:
    return s == t or not way.at_once


def _add_staircases(one: TimeStaircase, other: TimeStaircase) -> TimeStaircase:
    """The seconds of both by the memory in which both can run."""
    if not (len(one.bytes) and len(other.bytes)):
        return TimeStaircase(one.bytes[:0], one.seconds[:0])
    least = max(one.bytes[0], other.bytes[0])
    sizes = np.union1d(one.bytes, other.bytes)
    sizes = sizes[sizes >= least]
    first = np.searchsorted(one.bytes, sizes, side="right") - 1
    second = np.searchsorted(other.bytes, sizes, side="right") - 1
    return TimeStaircase(sizes, one.seconds[first] + other.seconds[second])


def _lower_envelope(ways: Iterator[TimeStaircase]) -> TimeStaircase:
    """The least seconds of all by memory."""
    found = list(ways)
    sizes = np.concatenate([steps.bytes for steps in found])
    seconds = np.concatenate([steps.seconds for steps in found])
    order = np.lexsort((seconds, sizes))
    sizes, seconds = sizes[order], seconds[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(seconds)[:-1]])
    return TimeStaircase(sizes[seconds < before], seconds[seconds < before])


MAX_FLOATING_POSITIONS = 24
"""Positions of the longest chain whose sizes are not rounded: its program grows with the fifth
power of them, and with the budgets at which times fall."""
MAX_FLOATING_TABLE_POSITIONS = 80
"""Positions of the longest chain of all, whose table of 500 slots is filled in minutes."""


def floating_chain_plans(ways: ChainProblem, slots: int) -> ChainPlans:
    """The fastest plans of sequences in which the last stored output may move on, of a long chain
    with sizes rounded to `slots`. Raises ConfigError where it is too long for these, too."""
    if len(ways) <= MAX_FLOATING_POSITIONS:
        return FloatingChainPlans(ways)
    return floating_frontier(ways, slots)


def floating_frontier(ways: ChainProblem, slots: int) -> ProgramFrontier:
    """The plans of a chain of any length up to the longest, with sizes rounded to `slots`."""
    from tightfit.stages.combine.chain.floating_table import FloatingTableProgram

    if len(ways) > MAX_FLOATING_TABLE_POSITIONS:
        raise ConfigError(
            f"a chain of {len(ways)} positions is too long for outputs that move, which take up to "
            f"{MAX_FLOATING_TABLE_POSITIONS}; take another strategy"
        )
    return ProgramFrontier(FloatingTableProgram(ways), slots)


class FloatingChainPlans:
    """The fastest plans at any budget, to the byte, of sequences in which the last stored output
    may move on."""

    slots = 0
    kind = "floating"
    solver = "dynamic program, no slots"

    def __init__(self, ways: ChainProblem) -> None:
        self.ways = ways
        self.keep_all = ChainPlan.of_chain(self.ways, keep_all_sequence(ways))

    @cached_property
    def program(self) -> FloatingProgram:
        """The table of the chain."""
        return FloatingProgram(self.ways)

    @property
    def smallest_budget(self) -> int:
        """The least bytes in which such a sequence can run."""
        return int(self.program.whole.bytes[0])

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes; None where no sequence fits."""
        if budget >= self.keep_all.peak:
            return self.keep_all
        if budget < self.smallest_budget:
            return None
        return ChainPlan.of_chain(self.ways, self.program.sequence(budget))

    def bound(self, budget: int) -> float:
        """Seconds that no such sequence within a budget beats: those of the fastest."""
        return self.program.whole.at(budget)

    def rounded(self, budget: int) -> float:
        """The same: no size is rounded."""
        return self.bound(budget)
