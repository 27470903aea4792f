"""The dynamic program over the states of a join, for all budgets up to a limit at once.

`T(q, m)` is the least time for forward, loss and backward of what is left in state q within m
slots, plain inputs counted (S Theorem 3, eq. 1.4). Here each position has sizes, times and ways of
its own (S eq. 2.9-2.10), where S has one output size. The b of S is here what a branch leaves
`after` it. The table holds times above the sum of the least times of the positions run once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.array_types import IntArray, SecondsArray
from tightfit.stages.combine.chain.discretize import (
    DiscretizedChain,
    SlotGrid,
    choose_slot_size,
    discretize_on_grid,
)
from tightfit.stages.combine.chain.dp_table import (
    ChainTable,
    TableTimes,
    fill_chain_table,
    segment_row,
)
from tightfit.stages.combine.join.dp_state import (
    BranchState,
    JoinState,
    JoinStateSpace,
    NestedStep,
    advance_branch,
    build_nested_sequence,
    state_with_kept_input,
    states_after_passing,
)
from tightfit.stages.combine.join.problem import JoinProblem

JOIN_COMPILED_MIN_WORK = 100_000
"""States times positions from which loading the compiled program pays."""


@dataclass(frozen=True)
class JoinTable:
    """`cost[q, m]` in seconds above the bases, infinite where m slots do not do; `tables` are those
    of the branches, None for one of no positions."""

    states: JoinStateSpace
    grid: SlotGrid
    tables: list[ChainTable | None]
    cost: SecondsArray

    @property
    def times(self) -> TableTimes:
        """What is worth keeping of a table, which may be large."""
        start = self.cost[tuple(0 for _ in self.states.shape)]
        join = self.states.join
        base = sum(float(table.slots.base.sum()) for table in self.tables if table is not None)
        return TableTimes(self.grid, start.copy(), base + join.turn.seconds)

    def sequence(self, count: int) -> list[ChainOperation]:
        """An optimal nested sequence within `count` slots, which must be enough."""
        return build_nested_sequence(self.states, count, self._choice, self._segment)

    def _segment(self, k: int, s: int, t: int, count: int) -> list[ChainOperation]:
        table = self.tables[k]
        return table.segment(s, t, count) if table is not None else []

    def _choice(self, state: JoinState, count: int) -> NestedStep:
        best, chosen = np.inf, None
        for found in _moves(self, state):
            seconds = found.seconds_at(count)
            if chosen is None or seconds < best:
                best, chosen = seconds, found.choice(count)
        assert chosen is not None
        return chosen


@dataclass(frozen=True)
class _Keep:
    """A way of a position, which the inner state follows in `shift` slots less."""

    k: int
    option: int
    least: int
    shift: int
    extra: float
    inner: SecondsArray

    def into(self, row: SecondsArray) -> None:
        """Lowers a row of the table where this takes less time."""
        low = max(self.least, self.shift)
        if low < row.size:
            found = self.inner[low - self.shift : row.size - self.shift] + self.extra
            np.minimum(row[low:], found, out=row[low:])

    def seconds_at(self, count: int) -> float:
        """The time in a number of slots."""
        if count < max(self.least, self.shift):
            return np.inf
        return float(self.inner[count - self.shift] + self.extra)

    def choice(self, count: int) -> NestedStep:
        """What this stores."""
        return NestedStep(self.k, self.option, 0, count - self.shift, 0)


@dataclass(frozen=True)
class _Pass:
    """Passing on to r, for all r from the position on, by row: `inner` states in `shift` slots
    less, and `tails`, the backward of what was passed, in `beside` slots less (or more)."""

    k: int
    position: int
    least: IntArray
    shift: int
    beside: int
    passed: SecondsArray
    inner: SecondsArray
    tails: SecondsArray

    def into(self, row: SecondsArray) -> None:
        """Lowers a row of the table where this takes less time."""
        low = max(int(self.least[0]), self.shift, self.beside)
        if low >= row.size:
            return
        found = self.inner[:, low - self.shift : row.size - self.shift] + self.passed[:, None]
        found += self.tails[:, low - self.beside : row.size - self.beside]
        if self.least[-1] > low:
            found[np.arange(low, row.size)[None, :] < self.least[:, None]] = np.inf
        np.minimum(row[low:], found.min(axis=0), out=row[low:])

    def _at(self, count: int) -> SecondsArray:
        if count < max(self.shift, self.beside):
            return np.full(len(self.least), np.inf)
        found = self.inner[:, count - self.shift] + self.tails[:, count - self.beside] + self.passed
        return np.where(count < self.least, np.inf, found)

    def seconds_at(self, count: int) -> float:
        """The time in a number of slots."""
        return float(self._at(count).min())

    def choice(self, count: int) -> NestedStep:
        """What this stores."""
        split = self.position + int(self._at(count).argmin())
        return NestedStep(self.k, 0, split, count - self.shift, count - self.beside)


def build_join_table(
    join: JoinProblem, limit: int, slots: int, optimistic: bool = False
) -> JoinTable:
    """The table of all budgets up to `limit` bytes (`join.throughout` not counted), in at most
    `slots` slots, and half as many more where sizes are rounded (see `chain.slots.discretize`)."""
    table = build_empty_join_table(join, limit, slots, optimistic)
    positions = sum(branch.length for branch in table.states.branches)
    if len(table.states) * positions < JOIN_COMPILED_MIN_WORK:
        fill_join_table(table)
    else:
        from tightfit.stages.combine.join.dp_table_compiled import fill_join_table_compiled

        fill_join_table_compiled(table.states, table.grid, table.tables, table.cost)
    return table


def build_empty_join_table(
    join: JoinProblem, limit: int, slots: int, optimistic: bool
) -> JoinTable:
    """The table with those of its branches, before it is filled."""
    states = JoinStateSpace(join)
    grid = _build_grid(states, max(limit, 0), slots, optimistic)
    released = sum(branch.released for branch in join.branches)
    wide = replace(grid, count=grid.count + -(-released // grid.unit))
    tables: list[ChainTable | None] = []
    for branch in states.branches:
        chain = discretize_on_grid(branch.needs, wide) if branch.length else None
        tables.append(
            ChainTable(branch.ways, chain, fill_chain_table(chain)) if chain is not None else None
        )
    cost = np.full((*states.shape, grid.count + 1), np.inf)
    return JoinTable(states, grid, tables, cost)


def fill_join_table(table: JoinTable) -> None:
    """Fills the table's costs."""
    for state in table.states.all():
        row = table.cost[state]
        if table.states.at_loss(state):
            row[max(0, -(-table.states.loss_need(state) // table.grid.unit)) :] = 0.0
            continue
        for move in _moves(table, state):
            move.into(row)


def _moves(table: JoinTable, state: JoinState) -> Iterator[_Keep | _Pass]:
    """What can be stored first of what is left."""
    for k, seen in table.states.branch_states(state):
        chain = table.tables[k]
        if chain is not None:
            yield from _keep_moves(table, state, k, seen, chain.slots)
            yield _pass_move(table, state, k, seen, chain)


def _keep_moves(
    table: JoinTable, state: JoinState, k: int, seen: BranchState, slots: DiscretizedChain
) -> Iterator[_Keep]:
    branch, s = table.states.branches[k], seen.position
    ways = branch.ways.at(s).ways
    if all(way.at_once for way in ways):
        return
    inner = table.cost[advance_branch(state, k, state_with_kept_input(s + 1))]
    least = -(-seen.option_memory(branch) // table.grid.unit)
    plain = _stored_slots(table.grid, seen.plain)
    for number, way in enumerate(ways):
        if not way.at_once:
            index = int(slots.first[s]) + number
            shift = plain + int(slots.save[index])
            extra = float(slots.extra[index])
            yield _Keep(k, way.option, int(least[number]), shift, extra, inner)


def _pass_move(
    table: JoinTable, state: JoinState, k: int, seen: BranchState, chain: ChainTable
) -> _Pass:
    branch, s = table.states.branches[k], seen.position
    inner = table.cost[states_after_passing(state, k, s)]
    begin = segment_row(branch.length, s, s)
    passes = chain.slots.passes
    return _Pass(
        k,
        s,
        -(-seen.passing(branch) // table.grid.unit),
        _stored_slots(table.grid, seen.plain),
        _stored_slots(table.grid, seen.others + seen.plain),
        passes[s:] - passes[s - 1],
        inner,
        chain.cost[begin : begin + branch.length - s + 1],
    )


def _stored_slots(grid: SlotGrid, size: int) -> int:
    """The slots of what is stored, below zero for what is given back."""
    return size // grid.unit if grid.optimistic else -(-size // grid.unit)


def _build_grid(states: JoinStateSpace, limit: int, slots: int, optimistic: bool) -> SlotGrid:
    stored, others = states.sizes()
    unit, exact = choose_slot_size(stored, others, limit, slots)
    count = limit // unit
    if optimistic and not exact:
        count = -(-limit // unit)
    elif not exact:
        count += count // 2
    return SlotGrid(unit, count, exact, optimistic)


def has_exact_join_slots(join: JoinProblem, limit: int, slots: int) -> bool:
    """Whether `build_join_table` rounds nothing."""
    return _build_grid(JoinStateSpace(join), max(limit, 0), slots, False).exact
