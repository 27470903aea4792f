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

from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.chain.table import Steps, pass_on, run_block, unrolled
from tightfit.stages.combine.chain.ways import Way, Ways

Backwards = tuple[int, int, int]
"""s, t and l of the docstring above, where l is `low`."""


@dataclass(frozen=True)
class Staircase:
    """The least seconds by memory: `seconds[i]` from `bytes[i]` on, strictly falling."""

    bytes: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]

    def at(self, budget: int) -> float:
        """The least seconds within a budget."""
        place = int(np.searchsorted(self.bytes, budget, side="right"))
        return float(self.seconds[place - 1]) if place else np.inf

    def within(self, need: int, more: int, seconds: float) -> Staircase:
        """The same with `more` bytes beside, not below `need` bytes, and with further seconds."""
        return Staircase(np.maximum(self.bytes + more, need), self.seconds + seconds)


@dataclass(frozen=True)
class _Choice:
    """What comes first, with `need` bytes and `seconds` of its own, and what follows it: segments
    with the bytes that are stored beside each."""

    operations: tuple[Operation, ...]
    need: int
    seconds: float
    segments: tuple[tuple[Backwards, int], ...]
    backward: Operation | None = None


class Floating:
    """The program of a chain whose positions keep everything or nothing."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.last = len(ways)
        gradients = [ways.at(position).gradient for position in range(self.last, 0, -1)]
        self.done = [*accumulate(gradients, initial=0)][::-1]
        self.table: dict[Backwards, Staircase] = {}
        for t in range(1, self.last + 1):
            for s in range(t, 0, -1):
                for low in range(s, t + 1):
                    self.table[s, t, low] = _lowest(self._ways((s, t, low)))

    @cached_property
    def whole(self) -> Staircase:
        """The least seconds of the chain by memory, `ways.throughout` counted."""
        steps = self.table[1, self.last, 1]
        return steps.within(0, self.ways.throughout, self.ways.first_seconds)

    def sequence(self, budget: int) -> list[Operation]:
        """A fastest sequence within a budget, which must be enough."""
        return unrolled((1, self.last, 1, budget - self.ways.throughout), self._first)

    def _first(self, s: int, t: int, low: int, budget: int) -> Steps:
        """The first operations of a fastest sequence, with the segments that follow."""
        fitting = [
            (self._seconds(choice, budget), number, choice)
            for number, choice in enumerate(self._choices((s, t, low)))
        ]
        choice = min(fitting)[2]
        segments = ((*segment, budget - beside) for segment, beside in choice.segments)
        ended = [] if choice.backward is None else [choice.backward]
        return [*choice.operations, *segments, *ended]

    def _seconds(self, choice: _Choice, budget: int) -> float:
        if choice.need > budget:
            return np.inf
        inner = (self.table[segment].at(budget - beside) for segment, beside in choice.segments)
        return choice.seconds + sum(inner)

    def _ways(self, segment: Backwards) -> Iterator[Staircase]:
        """The least seconds of each choice by memory."""
        for choice in self._choices(segment):
            found = Staircase(np.array([choice.need]), np.array([choice.seconds]))
            for inner, beside in choice.segments:
                found = _sum(found, self.table[inner].within(0, beside, 0.0))
            yield found

    def _choices(self, segment: Backwards) -> Iterator[_Choice]:
        s, t, low = segment
        if s == low:
            yield from (self._keep(s, t, way) for way in self.ways.at(s).ways if _may(way, s, t))
        else:
            yield self._move(s, t, low)
        yield from self._stores(s, t, low)

    def _keep(self, s: int, t: int, way: Way) -> _Choice:
        """Case 1: s keeps what its backward reads."""
        forward = self.ways.at(t).delta + way.forward_peak
        backward = self.done[s] - self.done[t] + way.backward_peak
        at_once = s == t and s != self.ways.loss_position
        seconds = way.seconds - (way.output_seconds if at_once else 0.0)
        ran = run_block(s, way.option, self.ways.loss_position, [])
        operations = [step for step in ran if isinstance(step, Operation)]
        if s == t:
            return _Choice(tuple(operations), max(forward, backward), seconds, ())
        inner = ((s + 1, t, s + 1), way.save)
        return _Choice((operations[0],), max(forward, backward), seconds, (inner,), operations[1])

    def _move(self, s: int, t: int, low: int) -> _Choice:
        """Case 3, by one position: the output of s takes the place of that of s - 1. The chain's
        input stays."""
        one = self.ways.at(s)
        source = self.ways.at(s - 1).output if s > 1 else 0
        need = self.ways.at(t).delta + one.pass_peak - source * one.in_place
        inner = ((s + 1, t, low), one.output - source)
        return _Choice((Operation("F_none", s),), need, one.pass_seconds, (inner,))

    def _stores(self, s: int, t: int, low: int) -> Iterator[_Choice]:
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
                yield _Choice(tuple(pass_on(s, r)), need, seconds, (inner, later))


def _may(way: Way, s: int, t: int) -> bool:
    return s == t or not way.at_once


def _sum(one: Staircase, other: Staircase) -> Staircase:
    """The seconds of both by the memory in which both can run."""
    if not (len(one.bytes) and len(other.bytes)):
        return Staircase(one.bytes[:0], one.seconds[:0])
    least = max(one.bytes[0], other.bytes[0])
    sizes = np.union1d(one.bytes, other.bytes)
    sizes = sizes[sizes >= least]
    first = np.searchsorted(one.bytes, sizes, side="right") - 1
    second = np.searchsorted(other.bytes, sizes, side="right") - 1
    return Staircase(sizes, one.seconds[first] + other.seconds[second])


def _lowest(ways: Iterator[Staircase]) -> Staircase:
    """The least seconds of all by memory."""
    found = list(ways)
    sizes = np.concatenate([steps.bytes for steps in found])
    seconds = np.concatenate([steps.seconds for steps in found])
    order = np.lexsort((seconds, sizes))
    sizes, seconds = sizes[order], seconds[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(seconds)[:-1]])
    return Staircase(sizes[seconds < before], seconds[seconds < before])
