"""A chain in slots of memory, as the dynamic program sees it.

What is stored is rounded up to slots and the budget down, so that a sequence within the slots is
within the bytes; an `optimistic` chain is rounded the other way, for a bound. What an action needs
while it runs is compared with the bytes that the slots stand for, and adds no rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt

from tightfit.stages.combine.array_types import IntArray, SecondsArray
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption

SlotThresholds = npt.NDArray[np.int32]

MAX_SLOT_STRETCH = 1.25
"""How much larger than the budget asks a slot may be made, where that rounds less."""
SLOT_SIZE_TRIALS = 256


@dataclass(frozen=True)
class SlotGrid:
    """Memory in `count` slots of `unit` bytes; `exact` when nothing was rounded, `optimistic` when
    sizes were rounded for a bound."""

    unit: int
    count: int
    exact: bool
    optimistic: bool

    def room(self, budget: int) -> int:
        """The slots in a budget in bytes; budgets above the limit count as the limit."""
        whole = -(-budget // self.unit) if self.optimistic else budget // self.unit
        return min(whole, self.count)

    def stored(self, sizes: Sequence[int] | IntArray) -> IntArray:
        """The slots of what is stored, at most one more than there are."""
        array = np.array(sizes, dtype=np.int64)
        whole = array // self.unit if self.optimistic else -(-array // self.unit)
        return np.minimum(whole, self.count + 1)

    def least(self, needed: IntArray) -> SlotThresholds:
        """The least slots in which `needed` bytes are there, at most one more than there are."""
        return np.clip(-(-needed // self.unit), 0, self.count + 1).astype(np.int32)


@dataclass(frozen=True)
class DiscretizedChain(SlotGrid):
    """A chain of `length` positions in slots. Arrays are indexed by position 1..length (entry 0 is
    unused) or by way.

    `output` slots; `passes`, the seconds of forwards that keep nothing up to and with a position;
    `base`, the least seconds of a position run once (entry 0: `ChainProblem.first_seconds`). The
    ways of position s are `first[s] .. first[s+1] - 1`, with `save` slots, `extra` seconds above
    the base (infinite where the backward has to follow at once), and `alone`, the same where it
    does. `enter[way, t]` are the least slots in which a way can start the segment that ends with t,
    `skip[s, t]` those for passing on from s. From `full[s, t]` slots on more memory saves no time:
    the segment takes `floor[t]` seconds above the bases."""

    length: int
    output: IntArray
    passes: SecondsArray
    base: SecondsArray
    first: IntArray
    save: IntArray
    extra: SecondsArray
    alone: SecondsArray
    enter: SlotThresholds
    skip: SlotThresholds
    full: SlotThresholds
    floor: SecondsArray


def discretize_chain(
    ways: ChainProblem, limit: int, slots: int, optimistic: bool = False
) -> DiscretizedChain:
    """The chain for all budgets up to `limit` bytes (`ways.throughout` not counted), in at most
    `slots` slots. Nothing is rounded where the limit has no more bytes than slots, or no more
    multiples of a number that divides all sizes. Elsewhere there are up to half as many slots more,
    or as many as keeping everything takes where that is less. Rounding makes sequences look larger
    than they are: these may fit the limit when they are simulated."""
    needs = SegmentMemory(ways)
    limit = max(limit, 0)
    unit, exact = choose_slot_size(needs.stored(), needs.other_sizes(), limit, slots)
    count = limit // unit
    if optimistic and not exact:
        count = -(-limit // unit)
    elif not exact:
        count += count // 2
    chain = discretize_on_grid(needs, SlotGrid(unit, count, exact, optimistic))
    if not exact and not optimistic:
        count = min(count, max(limit // unit, int(chain.full[1, len(ways)])))
    most = np.int32(count + 1)
    return replace(
        chain,
        count=count,
        enter=np.minimum(chain.enter, most),
        skip=np.minimum(chain.skip, most),
        full=np.minimum(chain.full, most),
    )


def discretize_on_grid(needs: SegmentMemory, grid: SlotGrid) -> DiscretizedChain:
    """The chain in the slots of a grid."""
    ways = needs.ways
    seconds = _PositionTimes(ways)
    save = grid.stored([way.save for way in needs.every])
    enter = np.concatenate([grid.least(rows) for rows in needs.enter()])
    skip = np.full((len(ways) + 2, len(ways) + 1), grid.count + 1, dtype=np.int32)
    for s, row in needs.skip():
        skip[s, s + 1 :] = grid.least(row)
    return DiscretizedChain(
        unit=grid.unit,
        count=grid.count,
        exact=grid.exact,
        optimistic=grid.optimistic,
        length=len(ways),
        output=grid.stored([0, *(one.output for one in ways.positions)]),
        passes=seconds.passes,
        base=seconds.base,
        first=needs.first,
        save=save,
        extra=seconds.extra,
        alone=seconds.alone,
        enter=enter,
        skip=skip,
        full=_saturation_slots(len(ways), needs.first, enter, save, seconds, grid.count),
        floor=seconds.floor,
    )


def has_exact_slots(ways: ChainProblem, limit: int, slots: int) -> bool:
    """Whether `discretize` rounds nothing."""
    needs = SegmentMemory(ways)
    return choose_slot_size(needs.stored(), needs.other_sizes(), limit, slots)[1]


class SegmentMemory:
    """What segments of a chain need in bytes, without `ways.throughout` and the segment's input.

    While segment (s, t) runs, the gradient of t's output is there, and the parameter gradients of
    all positions after t.
    """

    def __init__(self, ways: ChainProblem) -> None:
        self.ways = ways
        self.every: list[PositionOption] = [way for one in ways.positions for way in one.ways]
        sizes = [len(one.ways) for one in ways.positions]
        self.first: IntArray = np.cumsum([0, 0, *sizes])
        gradients = np.array([0, *(one.gradient for one in ways.positions)], dtype=np.int64)
        self.later_gradients: IntArray = gradients.sum() - np.cumsum(gradients)
        deltas = np.array([0, *(one.delta for one in ways.positions)], dtype=np.int64)
        self.beside: IntArray = self.later_gradients + deltas

    def enter(self) -> Iterator[IntArray]:
        """For each position s its ways by t = 0..L+1: forward and backward of the way."""
        for s, one in enumerate(self.ways.positions, start=1):
            forward = np.array([[way.forward_peak] for way in one.ways], dtype=np.int64)
            backward = np.array([[way.backward_peak] for way in one.ways], dtype=np.int64)
            yield np.maximum(forward + self.beside, backward + self.later_gradients[s])

    def skip(self) -> Iterator[tuple[int, IntArray]]:
        """For s = L, L-1, .. 1 the needs of passing on from s to t - 1, by t = s+1..L+1 (S, m_none
        without the step t)."""
        for s, row in self.passing():
            if s < len(self.ways):
                yield s, row[:-1] + self.beside[s + 1 :]

    def passing(self) -> Iterator[tuple[int, IntArray]]:
        """For s = L+1, L, .. 1 the needs of passing on from s to r, by r = s..L+1, with no gradient
        beside."""
        later: IntArray = np.zeros(0, dtype=np.int64)
        for s in range(len(self.ways), 0, -1):
            one = self.ways.at(s)
            yield s, np.maximum(np.concatenate([[0], later]), one.pass_peak)
            before = 0 if s == 1 or one.in_place else self.ways.at(s - 1).output
            later = np.maximum(np.concatenate([[0], later]), before + one.pass_peak)

    def stored(self) -> list[int]:
        """The sizes of what is stored."""
        return [way.save for way in self.every] + [one.output for one in self.ways.positions]

    def other_sizes(self) -> list[int]:
        """All other sizes that memory is compared with."""
        peaks = [peak for way in self.every for peak in (way.forward_peak, way.backward_peak)]
        passing = [one.pass_peak for one in self.ways.positions]
        return [*peaks, *passing, *self.later_gradients.tolist(), *self.beside.tolist()]


class _PositionTimes:
    """Seconds of positions and ways, as in `Slots`."""

    def __init__(self, ways: ChainProblem) -> None:
        base, extra, alone, floor = [ways.first_seconds], [], [], [0.0]
        for position, one in enumerate(ways.positions, start=1):
            least = min(way.seconds for way in one.ways)
            is_loss = position == ways.loss_position
            own = [way.seconds - least for way in one.ways]
            spared = [0.0 if is_loss else way.output_seconds for way in one.ways]
            at_once = [a - b for a, b in zip(own, spared, strict=True)]
            base.append(least)
            extra += [inf if way.at_once else a for way, a in zip(one.ways, own, strict=True)]
            alone += at_once
            floor.append(min(at_once))
        self.base = np.array(base)
        self.extra = np.array(extra)
        self.alone = np.array(alone)
        self.floor = np.array(floor)
        self.passes = np.cumsum([0.0, *(one.pass_seconds for one in ways.positions)])


def _saturation_slots(
    length: int,
    first: IntArray,
    enter: SlotThresholds,
    save: IntArray,
    seconds: _PositionTimes,
    count: int,
) -> SlotThresholds:
    full = np.full((length + 2, length + 1), count + 1, dtype=np.int64)
    for s in range(length, 0, -1):
        for way in range(first[s], first[s + 1]):
            if seconds.alone[way] == seconds.floor[s]:
                full[s, s] = min(full[s, s], enter[way, s])
            if seconds.extra[way] == 0.0:
                most = np.maximum(enter[way, s + 1 :], save[way] + full[s + 1, s + 1 :])
                full[s, s + 1 :] = np.minimum(full[s, s + 1 :], most)
    return np.minimum(full, count + 1).astype(np.int32)


def choose_slot_size(
    stored: list[int], others: list[int], limit: int, slots: int
) -> tuple[int, bool]:
    """The bytes of a slot, and whether it divides all sizes, those `stored` and the `others`.

    Among sizes somewhat above the least, which gives `slots` slots, it is the one that rounds the
    stored sizes up by the least bytes: real chains have few distinct sizes.
    """
    least = max(1, -(-limit // slots))
    divisor = math.gcd(*stored, *others)
    if divisor >= least:
        return divisor, True
    sizes, repeats = np.unique(np.array(stored, dtype=np.int64), return_counts=True)
    fitting = -(-sizes // np.maximum(sizes // least, 1))
    units = np.concatenate(
        [np.linspace(least, least * MAX_SLOT_STRETCH, SLOT_SIZE_TRIALS).astype(np.int64), fitting]
    )
    units = np.unique(units[(units >= least) & (units <= least * MAX_SLOT_STRETCH)])
    loss = [int(((-sizes % unit) * repeats).sum()) for unit in units]
    return int(units[int(np.argmin(loss))]), least == 1
