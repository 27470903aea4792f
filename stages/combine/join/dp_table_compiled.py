"""The dynamic program of `table.fill_join`, compiled, for long branches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from tightfit.stages.combine.array_types import IntArray, SecondsArray
from tightfit.stages.combine.chain.discretize import SlotGrid
from tightfit.stages.combine.chain.dp_table import ChainTable
from tightfit.stages.combine.chain.dp_table_compiled import NO_NAN
from tightfit.stages.combine.join.dp_state import JoinStateSpace


class _BranchArrays(NamedTuple):
    """The branches side by side, in slots of `unit` bytes, `shape[k]` states of branch k.

    By branch and state: `plain` and `after` in bytes (see `states.Branch`), and the slots in which
    a plain input is `stored`. By way, those of branch k from `begin[k]` on and those of its
    position s from `first[k, s]` on: `save` slots, what `forward` and `backward` need in bytes, and
    `extra` seconds. `passing[k, s, r]` bytes, and `passes[k, r]` seconds. `tails` are the tables of
    the branches, that of branch k from row `rows[k]` on. `turn` is the loss: the
    bytes of its gradients, those beside, and what it needs. With `ordered` one branch goes on at a
    time.
    """

    unit: int
    optimistic: bool
    shape: IntArray
    plain: IntArray
    after: IntArray
    stored: IntArray
    begin: IntArray
    first: IntArray
    save: IntArray
    forward: IntArray
    backward: IntArray
    extra: SecondsArray
    passing: IntArray
    passes: SecondsArray
    rows: IntArray
    tails: SecondsArray
    turn: IntArray
    ordered: bool


def fill_join_table_compiled(
    states: JoinStateSpace, grid: SlotGrid, tables: list[ChainTable | None], cost: SecondsArray
) -> None:
    """Fills the table's costs, shape (.., count + 1), with those of `table.fill_join`."""
    flat = cost.reshape(len(states), grid.count + 1)
    _fill_states(flat, _stack_branches(states, grid, tables))


def _stack_branches(
    states: JoinStateSpace, grid: SlotGrid, tables: list[ChainTable | None]
) -> _BranchArrays:
    branches = states.branches
    longest = max(branch.length for branch in branches) + 2
    count = len(branches)
    plain = np.zeros((count, 2 * longest), dtype=np.int64)
    after = np.zeros((count, 2 * longest), dtype=np.int64)
    first = np.zeros((count, longest + 1), dtype=np.int64)
    passing = np.zeros((count, longest, longest), dtype=np.int64)
    passes = np.zeros((count, longest))
    ways: list[tuple[IntArray, IntArray, IntArray, SecondsArray]] = []
    tails: list[SecondsArray] = []
    begin, rows = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for k, (branch, table) in enumerate(zip(branches, tables, strict=True)):
        plain[k, : len(branch.plain)] = branch.plain
        after[k, : len(branch.after)] = branch.after
        begin[k] = sum(len(part[0]) for part in ways)
        rows[k] = sum(len(part) for part in tails)
        if table is None:
            continue
        slots = table.slots
        first[k, : len(slots.first)] = slots.first
        passes[k, : len(slots.passes)] = slots.passes
        for s, needs in branch.passing.items():
            passing[k, s, s : branch.length + 1] = needs
        forward = np.concatenate([branch.forward[s] for s in range(1, branch.length + 1)])
        backward = np.concatenate([branch.backward[s] for s in range(1, branch.length + 1)])
        ways.append((slots.save, forward, backward, slots.extra))
        tails.append(table.cost)
    none = (np.zeros(0, dtype=np.int64),) * 3
    save, forward, backward = (
        np.concatenate([none[i], *(part[i] for part in ways)]) for i in range(3)
    )
    loss, way = states.join.loss, states.join.turn
    needed = max(loss.delta + way.forward_peak, way.backward_peak)
    return _BranchArrays(
        unit=grid.unit,
        optimistic=grid.optimistic,
        shape=np.array(states.shape, dtype=np.int64),
        plain=plain,
        after=after,
        stored=plain // grid.unit if grid.optimistic else -(-plain // grid.unit),
        begin=begin,
        first=first,
        save=save,
        forward=forward,
        backward=backward,
        extra=np.concatenate([np.zeros(0), *(part[3] for part in ways)]),
        passing=passing,
        passes=passes,
        rows=rows,
        tails=np.concatenate(tails) if tails else np.zeros((0, 1)),
        turn=np.array([loss.delta, loss.gradient, needed]),
        ordered=states.join.ordered,
    )


@njit("void(float64[::1], float64[::1], float64)", cache=True, fastmath=NO_NAN)
def _try_keep(row: SecondsArray, inner: SecondsArray, extra: float) -> None:
    for m in range(row.size):
        found = inner[m] + extra
        row[m] = found if found < row[m] else row[m]


@njit("void(float64[::1], float64[::1], float64[::1], float64)", cache=True, fastmath=NO_NAN)
def _try_pass(row: SecondsArray, inner: SecondsArray, tail: SecondsArray, passed: float) -> None:
    for m in range(row.size):
        found = inner[m] + passed + tail[m]
        row[m] = found if found < row[m] else row[m]


@njit(cache=True)
def _fill_states(cost: SecondsArray, join: _BranchArrays) -> None:
    shape, unit, turn = join.shape, join.unit, join.turn
    branches, width = shape.size, cost.shape[1]
    stride = np.ones(branches, dtype=np.int64)
    for k in range(branches - 2, -1, -1):
        stride[k] = stride[k + 1] * shape[k + 1]
    for index in range(cost.shape[0] - 1, -1, -1):
        row = cost[index]
        flagged, left, others = turn[0], 0, turn[1]
        for k in range(branches):
            q = index // stride[k] % shape[k]
            flagged += join.plain[k, q]
            others += join.after[k, q]
            left += (q + 1) // 2 < shape[k] // 2
        if left == 0:
            row[max(0, -(-(flagged - turn[0] + turn[2]) // unit)) :] = 0.0
            continue
        for k in range(branches):
            q = index // stride[k] % shape[k]
            s, length = (q + 1) // 2 + 1, shape[k] // 2
            if s > length:
                continue
            back = others - join.after[k, q] + join.plain[k, q]
            kept = index + (2 * s - 1 - q) * stride[k]
            for way in range(
                join.begin[k] + join.first[k, s], join.begin[k] + join.first[k, s + 1]
            ):
                if join.extra[way] == np.inf:
                    continue
                shift = join.stored[k, q] + join.save[way]
                need = max(flagged + join.forward[way], back + join.backward[way])
                low = max(shift, -(-need // unit))
                if low < width:
                    inner = cost[kept, low - shift : width - shift]
                    _try_keep(row[low:], inner, join.extra[way])
            beside = back // unit if join.optimistic else -(-back // unit)
            segment = join.rows[k] + (s - 1) * length - (s - 1) * (s - 2) // 2 - s
            for r in range(s, length + 1):
                shift = join.stored[k, q]
                low = max(shift, beside, -(-(flagged + join.passing[k, s, r]) // unit))
                if low < width:
                    _try_pass(
                        row[low:],
                        cost[index + (2 * r - q) * stride[k], low - shift : width - shift],
                        join.tails[segment + r, low - beside : width - beside],
                        join.passes[k, r] - join.passes[k, s - 1],
                    )
            if join.ordered:
                break
