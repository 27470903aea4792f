"""The dynamic program over segments of a chain, for all budgets up to a limit at once.

`C(s, t, m)` is the least time for forward and backward of positions s..t within m slots. The output
of s - 1, which m does not count, and the gradient of t's output are there when the segment begins
(S eq. 2.9-2.10, Z eq. 2.20-2.22). The table holds it above the sum of the least times of the
positions run once each: `C(1, L+1, m)` is then the time lost to recomputing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tightfit.schemas.sequence import NO_OPTION, ChainOperation
from tightfit.stages.combine.array_types import SecondsArray
from tightfit.stages.combine.chain.discretize import DiscretizedChain, SlotGrid, discretize_chain
from tightfit.stages.combine.chain.options import ChainProblem

ChainSegment = tuple[int, ...]
"""The first and last position of a part of a chain, and at last the memory that it has."""
SegmentSteps = list[ChainOperation | ChainSegment]

COMPILED_MIN_STEPS = 1.5e8
"""Elementary steps from which loading the compiled program pays."""


@dataclass(frozen=True)
class TableTimes:
    """What a table says of the whole chain: the least time `lost` to recomputing, by slots, and
    `base`, the seconds of all positions run once."""

    slots: SlotGrid
    lost: SecondsArray
    base: float

    def seconds(self, budget: int) -> float:
        """The least time of the chain within `budget` bytes (`ways.throughout` not counted)."""
        if budget < 0:
            return float("inf")
        return float(self.lost[self.slots.room(budget)] + self.base)

    def steps(self) -> list[int]:
        """The numbers of slots from which the chain takes less time than with any fewer."""
        finite = np.isfinite(self.lost)
        before = np.concatenate([[np.inf], self.lost[:-1]])
        return np.flatnonzero(finite & (self.lost < before)).tolist()


@dataclass(frozen=True)
class ChainTable:
    """`cost[cell(s, t), m]` in seconds above the bases, infinite where m slots do not do."""

    ways: ChainProblem
    slots: DiscretizedChain
    cost: SecondsArray

    @property
    def times(self) -> TableTimes:
        """What is worth keeping of a table, which may be large."""
        whole = segment_row(self.slots.length, 1, self.slots.length)
        return TableTimes(self.slots, self.cost[whole].copy(), float(self.slots.base.sum()))

    def sequence(self, count: int) -> list[ChainOperation]:
        """An optimal sequence within `count` slots, which must be enough."""
        return self.segment(1, self.slots.length, count)

    def segment(self, first: int, last: int, count: int) -> list[ChainOperation]:
        """An optimal sequence of a segment within `count` slots, which must be enough."""
        return unroll_segments((first, last, count), self._step)

    def _step(self, s: int, t: int, m: int) -> SegmentSteps:
        """The first actions of the best sequence for (s, t, m), with the segments between."""
        way, split = self._choice(s, t, m)
        if split == 0:
            option = self.ways.at(s).ways[way - self.slots.first[s]].option
            rest = [(s + 1, t, m - int(self.slots.save[way]))] if s < t else []
            return position_operations(s, option, self.ways.loss_position, rest)
        inner = (split + 1, t, m - int(self.slots.output[split]))
        return [*checkpoint_operations(s, split), inner, (s, split, m)]

    def _choice(self, s: int, t: int, m: int) -> tuple[int, int]:
        """The best way to run s once (and 0), or the best position to pass on to."""
        slots, cost = self.slots, self.cost
        best, chosen, split = float("inf"), int(slots.first[s]), 0
        for way in range(slots.first[s], slots.first[s + 1]):
            if m < slots.enter[way, t]:
                continue
            if s == t:
                found = float(slots.alone[way])
            elif m >= slots.save[way]:
                rest = cost[segment_row(slots.length, s + 1, t), m - slots.save[way]]
                found = float(slots.extra[way] + rest)
            else:
                continue
            if found < best:
                best, chosen = found, way
        if s < t and m >= slots.skip[s, t]:
            between = np.arange(s, t)
            heads = cost[segment_row(slots.length, s, s) + between - s, m]
            tails = cost[segment_rows_ending_at(slots.length, s + 1, t), m - slots.output[s:t]]
            found_at = heads + tails + (slots.passes[s:t] - slots.passes[s - 1])
            if found_at.min() < best:
                split = s + int(found_at.argmin())
        return chosen, split


def unroll_segments(whole: ChainSegment, step: Callable[..., SegmentSteps]) -> list[ChainOperation]:
    """The operations of a segment, where `step` gives its first ones with the segments between."""
    operations: list[ChainOperation] = []
    pending: SegmentSteps = [whole]
    while pending:
        item = pending.pop()
        if isinstance(item, ChainOperation):
            operations.append(item)
        else:
            pending.extend(reversed(step(*item)))
    return operations


def position_operations(
    position: int, option: int, loss: int, rest: Sequence[ChainSegment]
) -> SegmentSteps:
    """Forward of a position, what happens until its backward, and its backward; `loss` is the
    position of the loss."""
    if position == loss and option == NO_OPTION:
        return [ChainOperation("loss", loss)]
    forward = ChainOperation("F_all" if option == NO_OPTION else "F", position, option)
    return [forward, *rest, ChainOperation("B", position)]


def checkpoint_operations(first: int, last: int) -> list[ChainOperation]:
    """Forwards of positions first..last that keep the first one's input and the last one's
    output."""
    return [
        ChainOperation("F_ck", first),
        *(ChainOperation("F_none", p) for p in range(first + 1, last + 1)),
    ]


def segment_row(length: int, s: int, t: int) -> int:
    """The row of segment (s, t) in the table: ordered by s, then t."""
    return (s - 1) * length - (s - 1) * (s - 2) // 2 + t - s


def segment_rows_ending_at(length: int, first: int, t: int) -> np.ndarray:
    """The rows of segments (first, t), (first + 1, t), .. (t, t)."""
    s = np.arange(first, t + 1)
    return (s - 1) * length - (s - 1) * (s - 2) // 2 + t - s


def build_chain_table(
    ways: ChainProblem, limit: int, slots: int, optimistic: bool = False
) -> ChainTable:
    """The table of all budgets up to `limit` bytes, in at most `slots` slots (see `discretize`)."""
    chain = discretize_chain(ways, limit, slots, optimistic)
    steps = chain.length**3 / 6 * chain.count
    steps += chain.length / 2 * len(chain.save) * chain.count
    if steps < COMPILED_MIN_STEPS:
        return ChainTable(ways, chain, fill_chain_table(chain))
    from tightfit.stages.combine.chain.dp_table_compiled import fill_chain_table_compiled

    return ChainTable(ways, chain, fill_chain_table_compiled(chain))


def fill_chain_table(chain: DiscretizedChain) -> SecondsArray:
    """The table's costs, shape (segments, count + 1)."""
    length, width = chain.length, chain.count + 1
    cost = np.full((length * (length + 1) // 2, width), np.inf)
    moved = np.empty((length + 1, width))
    for t in range(1, length + 1):
        moved.fill(np.inf)
        for s in range(t, 0, -1):
            row = cost[segment_row(length, s, t)]
            after = cost[segment_row(length, s + 1, t)] if s < t else None
            _run_once(chain, s, t, row, after)
            if s < t:
                _run_again(chain, s, t, row, cost, moved)
            size = chain.output[s - 1]
            moved[s - 1, size:] = row[: width - size] + chain.passes[s - 1]
    return cost


def _run_once(
    chain: DiscretizedChain, s: int, t: int, row: SecondsArray, after: SecondsArray | None
) -> None:
    """Case 1: position s runs once, in one of its ways, and `after` is the segment (s + 1, t)."""
    for way in range(chain.first[s], chain.first[s + 1]):
        enter = chain.enter[way, t]
        if after is None:
            row[enter:] = np.minimum(row[enter:], chain.alone[way])
        else:
            save = chain.save[way]
            low = max(enter, save)
            rest = after[low - save : row.size - save] + chain.extra[way]
            row[low:] = np.minimum(row[low:], rest)


def _run_again(
    chain: DiscretizedChain,
    s: int,
    t: int,
    row: SecondsArray,
    cost: SecondsArray,
    moved: SecondsArray,
) -> None:
    """Case 2: s..r are passed, then come segment (r + 1, t) beside the output of r, and segment
    (s, r). `moved[r]` is the first of the two, `output[r]` slots further, with the passes up to
    r."""
    low, high = chain.skip[s, t], chain.full[s, t]
    if low < high:
        begin = segment_row(chain.length, s, s)
        found = cost[begin : begin + t - s, low:high] + moved[s:t, low:high]
        best = found.min(axis=0) - chain.passes[s - 1]
        row[low:high] = np.minimum(row[low:high], best)
