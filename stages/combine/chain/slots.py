"""A chain in slots of memory, as the dynamic program sees it.

What is stored is rounded up to slots and the budget down, so that a sequence within the slots is
within the bytes; an `optimistic` chain is rounded the other way, for a bound. What an action needs
while it runs is compared with the bytes that the slots stand for, and adds no rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.combine.chain.links import Links, Way

Integers = npt.NDArray[np.int64]
Thresholds = npt.NDArray[np.int32]
Seconds = npt.NDArray[np.float64]

STRETCH = 1.25
"""How much larger than the budget asks a slot may be made, where that rounds less."""
TRIALS = 256


@dataclass(frozen=True)
class Slots:
    """A chain of `length` positions, in `count` slots of `unit` bytes; `exact` when nothing was
    rounded. Arrays are indexed by position 1..length (entry 0 is unused) or by way.

    `output` slots; `passes`, the seconds of forwards that keep nothing up to and with a position;
    `base`, the least seconds of a position run once (entry 0: `Links.first_seconds`). The ways of
    position s are `first[s] .. first[s+1] - 1`, with `save` slots, `extra` seconds above the base,
    and `alone`, the same where the backward follows at once. `enter[way, t]` are the least slots in
    which a way can start the segment that ends with t, `skip[s, t]` those for passing on from s.
    From `full[s, t]` slots on more memory saves no time: the segment takes `floor[t]` seconds above
    the bases. `optimistic` chains were rounded for a bound.
    """

    length: int
    unit: int
    count: int
    exact: bool
    output: Integers
    passes: Seconds
    base: Seconds
    first: Integers
    save: Integers
    extra: Seconds
    alone: Seconds
    enter: Thresholds
    skip: Thresholds
    full: Thresholds
    floor: Seconds
    optimistic: bool

    def room(self, budget: int) -> int:
        """The slots in a budget in bytes; budgets above the limit count as the limit."""
        whole = -(-budget // self.unit) if self.optimistic else budget // self.unit
        return min(whole, self.count)


def discretise(links: Links, limit: int, slots: int, optimistic: bool = False) -> Slots:
    """The chain for all budgets up to `limit` bytes (`links.held` not counted), in at most `slots`
    slots. Nothing is rounded where the limit has no more bytes than slots, or no more multiples of
    a number that divides all sizes. Elsewhere there are up to half as many slots more, or as many
    as keeping everything takes where that is less. Rounding makes sequences look larger than they
    are: these may fit the limit when they are replayed."""
    needs = Needs(links)
    limit = max(limit, 0)
    unit, exact = _slot_size(needs, limit, slots)
    count = limit // unit
    if optimistic and not exact:
        count = -(-limit // unit)
    elif not exact:
        count += count // 2

    def stored(sizes: list[int]) -> Integers:
        array = np.array(sizes, dtype=np.int64)
        return np.minimum(array // unit if optimistic else -(-array // unit), count + 1)

    def least(needed: Integers) -> Thresholds:
        return np.clip(-(-needed // unit), 0, count + 1).astype(np.int32)

    seconds = _Times(links)
    save = stored([way.save for way in needs.ways])
    enter = np.concatenate([least(rows) for rows in needs.enter()])
    skip = np.full((len(links) + 2, len(links) + 1), count + 1, dtype=np.int32)
    for s, row in needs.skip():
        skip[s, s + 1 :] = least(row)
    full = _full(len(links), needs.first, enter, save, seconds, count)
    if not exact and not optimistic:
        count = min(count, max(limit // unit, int(full[1, len(links)])))
    return Slots(
        length=len(links),
        unit=unit,
        count=count,
        exact=exact,
        output=stored([0, *(link.output for link in links.links)]),
        passes=seconds.passes,
        base=seconds.base,
        first=needs.first,
        save=save,
        extra=seconds.extra,
        alone=seconds.alone,
        enter=np.minimum(enter, np.int32(count + 1)),
        skip=np.minimum(skip, np.int32(count + 1)),
        full=np.minimum(full, np.int32(count + 1)),
        floor=seconds.floor,
        optimistic=optimistic,
    )


def rounds_nothing(links: Links, limit: int, slots: int) -> bool:
    """Whether `discretise` rounds nothing."""
    return _slot_size(Needs(links), limit, slots)[1]


class Needs:
    """What segments of a chain need in bytes, `links.held` and the segment's input not counted.

    While segment (s, t) runs, the gradient of t's output is there, and the parameter gradients of
    all positions after t.
    """

    def __init__(self, links: Links) -> None:
        self.links = links
        self.ways: list[Way] = [way for link in links.links for way in link.ways]
        sizes = [len(link.ways) for link in links.links]
        self.first: Integers = np.cumsum([0, 0, *sizes])
        gradients = np.array([0, *(link.gradient for link in links.links)], dtype=np.int64)
        self.grown: Integers = gradients.sum() - np.cumsum(gradients)
        deltas = np.array([0, *(link.delta for link in links.links)], dtype=np.int64)
        self.beside: Integers = self.grown + deltas

    def enter(self) -> Iterator[Integers]:
        """For each position s its ways by t = 0..L+1: forward and backward of the way."""
        for s, link in enumerate(self.links.links, start=1):
            forward = np.array([[way.forward_peak] for way in link.ways], dtype=np.int64)
            backward = np.array([[way.backward_peak] for way in link.ways], dtype=np.int64)
            yield np.maximum(forward + self.beside, backward + self.grown[s])

    def skip(self) -> Iterator[tuple[int, Integers]]:
        """For s = L, L-1, .. 1 the needs of passing on from s to t - 1, by t = s+1..L+1 (S, m_none
        without the step t)."""
        length = len(self.links)
        later: Integers = np.zeros(0, dtype=np.int64)
        for s in range(length - 1, 0, -1):
            link = self.links.at(s)
            most = np.maximum(np.concatenate([[0], later]), link.pass_peak)
            yield s, most + self.beside[s + 1 :]
            before = self.links.at(s - 1).output if s > 1 else 0
            later = np.maximum(np.concatenate([[0], later]), before + link.pass_peak)


class _Times:
    """Seconds of positions and ways, as in `Slots`."""

    def __init__(self, links: Links) -> None:
        base, extra, alone, floor = [links.first_seconds], [], [], [0.0]
        for position, link in enumerate(links.links, start=1):
            least = min(way.seconds for way in link.ways)
            before_loss = position == len(links)
            own = [way.seconds - least for way in link.ways]
            spared = [0.0 if before_loss else way.output_seconds for way in link.ways]
            at_once = [a - b for a, b in zip(own, spared, strict=True)]
            base.append(least)
            extra += own
            alone += at_once
            floor.append(min(at_once))
        self.base = np.array(base)
        self.extra = np.array(extra)
        self.alone = np.array(alone)
        self.floor = np.array(floor)
        self.passes = np.cumsum([0.0, *(link.pass_seconds for link in links.links)])


def _full(
    length: int, first: Integers, enter: Thresholds, save: Integers, seconds: _Times, count: int
) -> Thresholds:
    full = np.full((length + 2, length + 1), count + 1, dtype=np.int64)
    for s in range(length, 0, -1):
        for way in range(first[s], first[s + 1]):
            if seconds.alone[way] == seconds.floor[s]:
                full[s, s] = min(full[s, s], enter[way, s])
            if seconds.extra[way] == 0.0:
                most = np.maximum(enter[way, s + 1 :], save[way] + full[s + 1, s + 1 :])
                full[s, s + 1 :] = np.minimum(full[s, s + 1 :], most)
    return np.minimum(full, count + 1).astype(np.int32)


def _slot_size(needs: Needs, limit: int, slots: int) -> tuple[int, bool]:
    """The bytes of a slot, and whether it divides all sizes.

    Among sizes somewhat above the least, which gives `slots` slots, it is the one that rounds the
    stored sizes up by the least bytes: real chains have few distinct sizes.
    """
    least = max(1, -(-limit // slots))
    stored = [way.save for way in needs.ways] + [link.output for link in needs.links.links]
    divisor = _divisor(needs, stored)
    if divisor >= least:
        return divisor, True
    sizes, repeats = np.unique(np.array(stored, dtype=np.int64), return_counts=True)
    fitting = -(-sizes // np.maximum(sizes // least, 1))
    units = np.concatenate([np.linspace(least, least * STRETCH, TRIALS).astype(np.int64), fitting])
    units = np.unique(units[(units >= least) & (units <= least * STRETCH)])
    loss = [int(((-sizes % unit) * repeats).sum()) for unit in units]
    return int(units[int(np.argmin(loss))]), least == 1


def _divisor(needs: Needs, stored: list[int]) -> int:
    peaks = [peak for way in needs.ways for peak in (way.forward_peak, way.backward_peak)]
    passing = [link.pass_peak for link in needs.links.links]
    beside = [*needs.grown.tolist(), *needs.beside.tolist()]
    return math.gcd(*stored, *peaks, *passing, *beside)
