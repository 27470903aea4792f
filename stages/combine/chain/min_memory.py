"""The least memory in which a persistent sequence can run a chain, to the byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tightfit.schemas.chain import MAX_BYTES
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.discretize import SegmentMemory
from tightfit.stages.combine.chain.dp_table import (
    SegmentSteps,
    checkpoint_operations,
    position_operations,
    segment_row,
    segment_rows_ending_at,
    unroll_segments,
)
from tightfit.stages.combine.chain.options import ChainProblem

Bytes = npt.NDArray[np.int64]


class ChainMinMemory:
    """The least bytes of every segment of a chain, `ways.throughout` not counted: the recursion of
    the dynamic program with the largest need in place of the time, and no slots."""

    def __init__(self, ways: ChainProblem) -> None:
        self.ways = ways
        self.needs = SegmentMemory(ways)
        self.enter = list(self.needs.enter())
        self.skip = dict(self.needs.skip())
        self.output = np.array([0, *(one.output for one in ways.positions)], dtype=np.int64)
        saves = [
            [MAX_BYTES if way.at_once else way.save for way in one.ways] for one in ways.positions
        ]
        self.save = [np.array(sizes, dtype=np.int64) for sizes in [[], *saves]]
        self.bytes = self._fill()

    @property
    def budget(self) -> int:
        """The smallest budget for the whole chain in bytes, `ways.throughout` counted."""
        length = len(self.ways)
        return int(self.bytes[segment_row(length, 1, length)]) + self.ways.always_resident

    def sequence(self) -> list[ChainOperation]:
        """A sequence within the smallest budget. The sequence aims at little memory. Where several
        actions need no more, a position runs once; else a segment is cut in the middle."""
        length = len(self.ways)
        return self.segment(1, length, int(self.bytes[segment_row(length, 1, length)]))

    def segment(self, first: int, last: int, room: int) -> list[ChainOperation]:
        """A sequence of a segment within `room` bytes, which must be enough."""
        return unroll_segments((first, last, room), self._step)

    def _fill(self) -> Bytes:
        length = len(self.ways)
        least = np.zeros(length * (length + 1) // 2, dtype=np.int64)
        tails = np.zeros(length + 1, dtype=np.int64)
        for t in range(1, length + 1):
            for s in range(t, 0, -1):
                row = segment_row(length, s, s)
                needed = self._once(least, s, t).min()
                if s < t:
                    split = np.maximum(least[row : row + t - s], tails[s:t]).min()
                    needed = min(needed, max(split, self.skip[s][t - s - 1]))
                least[row + t - s] = needed
                tails[s - 1] = self.output[s - 1] + needed
        return least

    def _once(self, least: Bytes, s: int, t: int) -> Bytes:
        """What each way of s needs in segment (s, t)."""
        enter = self.enter[s - 1][:, t]
        if s == t:
            return enter
        return np.maximum(enter, self.save[s] + least[segment_row(len(self.ways), s + 1, t)])

    def _splits(self, s: int, t: int) -> Bytes:
        """What each split r = s..t-1 of segment (s, t) needs."""
        length = len(self.ways)
        begin = segment_row(length, s, s)
        tails = self.output[s:t] + self.bytes[segment_rows_ending_at(length, s + 1, t)]
        parts = np.maximum(self.bytes[begin : begin + t - s], tails)
        return np.maximum(parts, self.skip[s][t - s - 1])

    def _step(self, s: int, t: int, room: int) -> SegmentSteps:
        ways = self.ways.at(s).ways
        fitting = np.flatnonzero(self._once(self.bytes, s, t) <= room)
        if fitting.size:
            chosen = min((ways[way] for way in fitting), key=lambda way: way.seconds)
            rest = [(s + 1, t, room - chosen.save)] if s < t else []
            return position_operations(s, chosen.option, self.ways.loss_position, rest)
        splits = s + np.flatnonzero(self._splits(s, t) <= room)
        split = int(splits[np.argmin(np.abs(splits - (s + t) / 2))])
        inner = (split + 1, t, room - int(self.output[split]))
        return [*checkpoint_operations(s, split), inner, (s, split, room)]
