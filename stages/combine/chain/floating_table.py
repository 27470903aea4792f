"""The program of `floating_persistence.py` for longer chains, in slots of memory (S 2.3.3).

`C(s, t, l, m)` is the least time of the backwards from t down to l within m slots, from the output
of s - 1, which m does not count. What is stored is rounded as in `discretize.py`, so that a table
has sequences for all budgets up to a limit. There are about L^3/6 rows and L^5/60 ways to fill them
from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from numba import njit

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.array_types import IntArray, SecondsArray
from tightfit.stages.combine.chain.discretize import (
    SegmentMemory,
    SlotGrid,
    choose_slot_size,
)
from tightfit.stages.combine.chain.dp_table import (
    SegmentSteps,
    TableTimes,
    checkpoint_operations,
    position_operations,
    unroll_segments,
)
from tightfit.stages.combine.chain.dp_table_compiled import NO_NAN
from tightfit.stages.combine.chain.frontier import BudgetTable, ChainProgram, MinMemory
from tightfit.stages.combine.chain.options import ChainProblem


class FloatingMemory:
    """What operations on segments need, in bytes, and what positions store and take; each position
    has one way, at index 1..L+1."""

    def __init__(self, ways: ChainProblem) -> None:
        assert all(len(one.ways) == 1 for one in ways.positions), "positions keep all or nothing"
        self.ways, self.needs = ways, SegmentMemory(ways)
        self.length = length = len(ways)
        own = [one.ways[0] for one in ways.positions]
        self.save: IntArray = np.array([0, *(way.save for way in own)])
        self.output: IntArray = np.array([0, *(one.output for one in ways.positions)])
        self.beside: IntArray = self.needs.beside
        self.enter = np.zeros((length + 1, length + 1), np.int64)
        self.passing = np.zeros((length + 1, length + 1), np.int64)
        for s, rows in enumerate(self.needs.enter(), start=1):
            self.enter[s] = rows[0]
        for s, row in self.needs.passing():
            self.passing[s, s:] = row
        sources = [0, 0, *(one.output for one in ways.positions[:-1])]
        self.source: IntArray = np.array(sources)
        in_place = np.array([False, *(one.in_place for one in ways.positions)])
        peaks = np.array([0, *(one.pass_peak for one in ways.positions)])
        self.move: IntArray = peaks - self.source * in_place
        self.passes = np.cumsum([0.0, *(one.pass_seconds for one in ways.positions)])
        self.base = np.array([0.0, *(way.seconds for way in own)])
        self.alone = np.array([0.0, *(-way.output_seconds for way in own)])
        if ways.loss_position:
            self.alone[ways.loss_position] = 0.0
        self.once = np.array([np.inf, *(np.inf if way.at_once else 0.0 for way in own)])
        self.begin = segment_rows(length)

    def row(self, s: int, t: int, low: int) -> int:
        """The row of a segment in tables."""
        return int(self.begin[s, t]) + low - s


def segment_rows(length: int) -> IntArray:
    """The row of segment (s, t, s) at [s, t]; those of (s, t, l) follow."""
    begin = np.zeros((length + 2, length + 2), np.int64)
    rows = 0
    for t in range(1, length + 1):
        for s in range(t, 0, -1):
            begin[s, t] = rows
            rows += t - s + 1
    begin[0, 0] = rows
    return begin


@njit("int64(int64, int64, int64)", cache=True, inline="always")
def _least_slots(needed: int, unit: int, count: int) -> int:
    return min(max(-((-needed) // unit), 0), count + 1)


@njit(cache=True, fastmath=NO_NAN)
def fill_floating_table(
    begin: IntArray,
    sizes: tuple[IntArray, IntArray, IntArray],
    needs: tuple[IntArray, IntArray, IntArray, IntArray],
    seconds: tuple[SecondsArray, SecondsArray, SecondsArray],
    unit: int,
    count: int,
) -> SecondsArray:
    """The least seconds above the bases, shape (segments, count + 1). `sizes` are slots of outputs,
    of what comes before a position and of what it saves; `needs` are bytes. With more slots a row
    is never slower, and none is faster than its passes and what forwards at once save."""
    output, source, save = sizes
    enter, passing, move, beside = needs
    passes, alone, once = seconds
    length = save.size - 1
    saved = alone.sum()
    cost = np.full((begin[0, 0], count + 1), np.inf)
    for t in range(1, length + 1):
        for s in range(t, 0, -1):
            for low in range(s, t + 1):
                row = cost[begin[s, t] + low - s]
                if s == low:
                    least = _least_slots(enter[s, t], unit, count)
                    if s == t:
                        row[least:] = alone[s]
                    else:
                        inner = cost[begin[s + 1, t]]
                        for m in range(max(least, save[s]), count + 1):
                            row[m] = once[s] + inner[m - save[s]]
                else:
                    least = _least_slots(move[s] + beside[t], unit, count)
                    shift = output[s] - source[s]
                    inner = cost[begin[s + 1, t] + low - s - 1]
                    for m in range(max(least, shift), count + 1):
                        row[m] = inner[min(m - shift, count)] + passes[s] - passes[s - 1]
                most = count + 1
                for r in range(s, t):
                    least = _least_slots(passing[s, r] + beside[t], unit, count)
                    least, more = max(least, output[r]), passes[r] - passes[s - 1]
                    while most > least and row[most - 1] <= more + saved:
                        most -= 1
                    if most <= least:
                        continue
                    own = row[least:most]
                    for u in range(max(low, r) + 1, t + 1):
                        first = cost[begin[r + 1, t] + u - r - 1, least - output[r] :]
                        later = cost[begin[s, u - 1] + low - s, least:]
                        for m in range(most - least):
                            seconds_of = more + first[m] + later[m]
                            if seconds_of < own[m]:
                                own[m] = seconds_of
    return cost


@njit(cache=True)
def fill_least_memory(
    begin: IntArray,
    sizes: tuple[IntArray, IntArray, IntArray],
    needs: tuple[IntArray, IntArray, IntArray, IntArray],
    kept: npt.NDArray[np.bool_],
) -> IntArray:
    """The least bytes of each segment: the same recursion with the largest need in place of the
    time. `kept` are the positions that may keep what their backward reads for a while."""
    output, source, save = sizes
    enter, passing, move, beside = needs
    length = save.size - 1
    bytes_of = np.zeros(begin[0, 0], np.int64)
    for t in range(1, length + 1):
        for s in range(t, 0, -1):
            for low in range(s, t + 1):
                best = np.int64(1) << 62
                if s == t:
                    best = enter[s, t]
                elif s < low:
                    inner = bytes_of[begin[s + 1, t] + low - s - 1] + output[s] - source[s]
                    best = max(move[s] + beside[t], inner)
                elif kept[s]:
                    best = max(enter[s, t], save[s] + bytes_of[begin[s + 1, t]])
                for r in range(s, t):
                    need = passing[s, r] + beside[t]
                    for u in range(max(low, r) + 1, t + 1):
                        first = output[r] + bytes_of[begin[r + 1, t] + u - r - 1]
                        best = min(best, max(need, first, bytes_of[begin[s, u - 1] + low - s]))
                bytes_of[begin[s, t] + low - s] = best
    return bytes_of


@dataclass(frozen=True)
class FloatingTable:
    """The table of a chain in the slots of a grid; `save`, `output` and `source` are in slots."""

    memory: FloatingMemory
    grid: SlotGrid
    save: IntArray
    output: IntArray
    source: IntArray
    cost: SecondsArray

    @classmethod
    def of(
        cls, memory: FloatingMemory, limit: int, slots: int, optimistic: bool = False
    ) -> FloatingTable:
        """The table of all budgets up to `limit` bytes, in at most `slots` slots and half as many
        more where sizes are rounded."""
        needs, limit = memory.needs, max(limit, 0)
        unit, exact = choose_slot_size(needs.stored(), needs.other_sizes(), limit, slots)
        count = limit // unit
        if optimistic and not exact:
            count = -(-limit // unit)
        elif not exact:
            count += count // 2
        grid = SlotGrid(unit, count, exact, optimistic)
        sizes = (memory.output, memory.source, memory.save)
        output, source, save = (grid.stored(bytes_of) for bytes_of in sizes)
        cost = fill_floating_table(
            memory.begin,
            (output, source, save),
            (memory.enter, memory.passing, memory.move, memory.beside),
            (memory.passes, memory.alone, memory.once),
            unit,
            count,
        )
        return cls(memory, grid, save, output, source, cost)

    @property
    def times(self) -> TableTimes:
        """What is worth keeping of a table, which may be large."""
        whole = self.memory.row(1, self.memory.length, 1)
        base = self.memory.ways.first_seconds + float(self.memory.base.sum())
        return TableTimes(self.grid, self.cost[whole].copy(), base)

    def sequence(self, count: int) -> list[ChainOperation]:
        """An optimal sequence within `count` slots, which must be enough."""
        return unroll_segments((1, self.memory.length, 1, count), self._step)

    def _step(self, s: int, t: int, low: int, m: int) -> SegmentSteps:
        """The first operations of the best sequence of a segment, with the segments between."""
        memory, best, chosen = self.memory, self._first_seconds(s, t, low, m), (0, 0)
        for r in range(s, t):
            most = m - int(self.output[r])
            if most < 0 or not self._enough(memory.passing[s, r] + memory.beside[t], m):
                break
            ends = np.arange(max(low, r) + 1, t + 1)
            first = self.cost[memory.begin[r + 1, t] + ends - r - 1, most]
            later = self.cost[memory.begin[s, ends - 1] + low - s, m]
            found = first + later + (memory.passes[r] - memory.passes[s - 1])
            if found.size and found.min() < best:
                best, chosen = float(found.min()), (r, int(ends[int(found.argmin())]))
        r, u = chosen
        if r:
            inner = (r + 1, t, u, m - int(self.output[r]))
            return [*checkpoint_operations(s, r), inner, (s, u - 1, low, m)]
        if s < low:
            shift = int(self.output[s] - self.source[s])
            return [ChainOperation("F_none", s), (s + 1, t, low, min(m - shift, self.grid.count))]
        rest = [(s + 1, t, s + 1, m - int(self.save[s]))] if s < t else []
        option = memory.ways.at(s).ways[0].option
        return position_operations(s, option, memory.ways.loss_position, rest)

    def _first_seconds(self, s: int, t: int, low: int, m: int) -> float:
        """The seconds of a segment that begins with keeping s, or with moving its input on."""
        memory = self.memory
        if s == t:
            return float(memory.alone[s]) if self._enough(memory.enter[s, t], m) else np.inf
        if s == low:
            left, needed = m - int(self.save[s]), memory.enter[s, t]
            more, row = memory.once[s], memory.row(s + 1, t, s + 1)
        else:
            left = min(m - int(self.output[s] - self.source[s]), self.grid.count)
            needed, row = memory.move[s] + memory.beside[t], memory.row(s + 1, t, low)
            more = memory.passes[s] - memory.passes[s - 1]
        fits = left >= 0 and self._enough(needed, m)
        return float(more + self.cost[row, left]) if fits else np.inf

    def _enough(self, needed: int, m: int) -> bool:
        return m * self.grid.unit >= needed


class FloatingMinMemory:
    """The least bytes in which such a sequence can run, and one that does."""

    def __init__(self, memory: FloatingMemory) -> None:
        self.memory = memory

    @cached_property
    def bytes(self) -> IntArray:
        """The least bytes of each segment, its input not counted."""
        memory = self.memory
        return fill_least_memory(
            memory.begin,
            (memory.output, memory.source, memory.save),
            (memory.enter, memory.passing, memory.move, memory.beside),
            np.isfinite(memory.once),
        )

    @property
    def budget(self) -> int:
        """The smallest budget in bytes, all counted."""
        whole = self.memory.row(1, self.memory.length, 1)
        return int(self.bytes[whole]) + self.memory.ways.always_resident

    def sequence(self) -> list[ChainOperation]:
        """A sequence within the smallest budget."""
        return unroll_segments((1, self.memory.length, 1), self._step)

    def _step(self, s: int, t: int, low: int) -> SegmentSteps:
        """The first operations of a sequence that needs least, with the segments between."""
        memory = self.memory
        best = int(self.bytes[memory.row(s, t, low)])
        if s < low and self._moved(s, t, low) <= best:
            return [ChainOperation("F_none", s), (s + 1, t, low)]
        if s == low and self._kept(s, t) <= best:
            rest = [(s + 1, t, s + 1)] if s < t else []
            option = memory.ways.at(s).ways[0].option
            return position_operations(s, option, memory.ways.loss_position, rest)
        for r in range(s, t):
            ends = np.arange(max(low, r) + 1, t + 1)
            first = self.bytes[memory.begin[r + 1, t] + ends - r - 1] + memory.output[r]
            later = self.bytes[memory.begin[s, ends - 1] + low - s]
            needs = np.maximum(np.maximum(first, later), memory.passing[s, r] + memory.beside[t])
            if needs.size and needs.min() <= best:
                u = int(ends[int(needs.argmin())])
                return [*checkpoint_operations(s, r), (r + 1, t, u), (s, u - 1, low)]
        raise AssertionError(f"no way needs {best} bytes")

    def _moved(self, s: int, t: int, low: int) -> int:
        memory = self.memory
        inner = int(self.bytes[memory.row(s + 1, t, low)] + memory.output[s] - memory.source[s])
        return max(int(memory.move[s] + memory.beside[t]), inner)

    def _kept(self, s: int, t: int) -> int:
        memory = self.memory
        if s == t:
            return int(memory.enter[s, t])
        inner = int(memory.save[s] + self.bytes[memory.row(s + 1, t, s + 1)])
        return max(int(memory.enter[s, t]), inner) if np.isfinite(memory.once[s]) else 1 << 62


@dataclass(frozen=True)
class FloatingTableProgram(ChainProgram):
    """The dynamic program of a chain whose last stored output may move on, for a frontier."""

    kind: str = "floating"

    @cached_property
    def memory(self) -> FloatingMemory:
        """What segments take."""
        return FloatingMemory(self.ways)

    def least(self) -> MinMemory:
        """The smallest budget with its sequence."""
        return FloatingMinMemory(self.memory)

    def table(self, limit: int, slots: int, optimistic: bool = False) -> BudgetTable:
        """The table of all budgets up to `limit` bytes, in at most `slots` slots."""
        return FloatingTable.of(self.memory, limit, slots, optimistic)
