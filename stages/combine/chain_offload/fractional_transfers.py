"""Offloading with fractional communications: memory follows a transfer as it proceeds.

All positions run once and keep everything; what leaves is sent in the order of the chain and comes
back in the opposite one, all of the former first (S 3.3.2, Assumptions 3). `FluidChain.step` is one
position of S eq. 3.4-3.15 on arrays of states, `FluidChain.turn` the idle time at the loss,
eq. 3.16-3.17.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tightfit.stages.combine.array_types import FloatArray, IntArray
from tightfit.stages.combine.chain.options import ChainProblem

MAX_BANDWIDTH = 1e30
"""Bytes a second that stand for no time at all."""


@dataclass(frozen=True)
class FluidStates:
    """States before a position: the bytes made before the last position that `stay` on the device,
    the bytes that are to be `sent` then, and those to be back (`due`) there. Bytes are negative
    where the link has been idle since for as many. `seconds` are those so far, from both ends of
    the step."""

    stay: FloatArray
    sent: FloatArray
    due: FloatArray
    seconds: FloatArray


def initial_fluid_states() -> FluidStates:
    """The one state before position 1."""
    return FluidStates(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))


class FluidChain:
    """The sizes and times of a chain by position 0..L+1, with a budget and a bandwidth."""

    def __init__(self, ways: ChainProblem, budget: int, bandwidth: float) -> None:
        first = [one.ways[0] for one in ways.positions]
        deltas = [0, *(one.delta for one in ways.positions)]
        self.length = len(ways)
        self.budget = float(budget)
        self.bandwidth = min(bandwidth, MAX_BANDWIDTH)
        self.kept = np.array([ways.always_resident, *(way.save for way in first)], dtype=np.float64)
        grads = np.array([0, *(one.gradient for one in ways.positions)], dtype=np.float64)
        self.later_gradients: FloatArray = grads.sum() - np.cumsum(grads)
        self.forward = np.array([0.0, *(way.forward_seconds for way in first)])
        self.backward = np.array([0.0, *(way.backward_seconds for way in first)])
        self.needs_forward = np.array([0, *(way.forward_peak for way in first)]) + float(deltas[-1])
        self.needs_backward = (
            np.array([0, *(way.backward_peak for way in first)]) + self.later_gradients
        )

    def waits(self, position: int, states: FluidStates) -> tuple[FloatArray, FloatArray]:
        """The idle seconds before a forward and after a backward (S eq. 3.6, 3.7); infinite where
        there is no room at all (S eq. 3.8, 3.9)."""
        before = self.kept[position - 1]
        room = self.budget - states.stay - before
        needs = (self.needs_forward[position], self.needs_backward[position])
        pending = (np.maximum(states.sent, 0), np.maximum(states.due, 0))
        found = []
        for need, data in zip(needs, pending, strict=True):
            over = np.maximum(need + data - room, 0)
            found.append(np.where(need > room, np.inf, over / self.bandwidth))
        return found[0], found[1]

    def step(self, position: int, states: FluidStates, share: float) -> FluidStates:
        """The states after a position whose input leaves for a `share` of it, 1 or 0 of whole
        ones."""
        ahead, after = self.waits(position, states)
        leaves = share * self.kept[position - 1]
        gone = (ahead + self.forward[position]) * self.bandwidth
        come = (after + self.backward[position]) * self.bandwidth
        if share > 0:
            sent = np.maximum(states.sent, 0) + leaves - gone
            due = np.maximum(states.due - come, 0) + leaves
        else:
            sent, due = states.sent - gone, states.due - come
        seconds = states.seconds + self.forward[position] + self.backward[position]
        stay = states.stay + self.kept[position - 1] - leaves
        return FluidStates(stay, sent, due, seconds + ahead + after)

    def turn(self, states: FluidStates) -> FloatArray:
        """The idle seconds between the phases (S eq. 3.16, 3.17, and both transfers in full where
        both are due)."""
        sent, due = states.sent, states.due
        both = (sent + due) / self.bandwidth
        late = self._turn(sent, due, states.stay, self.needs_backward, self.backward)
        early = self._turn(due, sent, states.stay, self.needs_forward, self.forward)
        none = np.zeros_like(both)
        ending = np.where(sent > 0, late, np.where(due > 0, early, none))
        return np.where((sent > 0) & (due > 0), both, ending)

    def _turn(
        self,
        moved: FloatArray,
        idle: FloatArray,
        stay: FloatArray,
        needs: FloatArray,
        seconds: FloatArray,
    ) -> FloatArray:
        """The wait where `moved` bytes go on on the other side of the loss, on which the link is
        idle at first (`idle` is negative)."""
        free = -idle / self.bandwidth
        wait = np.maximum(moved / self.bandwidth - free, 0)
        passed = freed = 0.0
        for position in range(self.length, 0, -1):
            there = needs[position] + stay + np.maximum(moved, 0) - freed
            over = (there - self.budget) / self.bandwidth - passed
            wait = np.where(passed < free, np.maximum(wait, over), wait)
            passed += seconds[position]
            freed += self.kept[position - 1]
        return wait


MAX_PAIRWISE_STATES = 600
"""States that are compared each with each."""
MAX_FLUID_STATES = 4000
"""States that are kept."""
INITIAL_CELLS = 512
"""Cells at first, along each number."""


def prune_states(
    seconds: FloatArray, others: list[FloatArray], most: int = MAX_FLUID_STATES
) -> tuple[IntArray, bool]:
    """The indices of the states to keep, in order, and whether all that were dropped are worse
    than one that is kept."""
    rows = np.column_stack([seconds, *others])
    order = np.lexsort(rows.T[::-1])
    rows = rows[order]
    fresh = np.ones(len(rows), dtype=bool)
    fresh[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    rows, order = rows[fresh], order[fresh]
    if len(rows) <= MAX_PAIRWISE_STATES:
        keep = _pareto_mask(rows)
        return np.sort(order[keep]), True
    keep = _fast_pareto_mask(rows)
    rows, order = rows[keep], order[keep]
    cells = INITIAL_CELLS
    while len(rows) > most:
        low, high = rows[:, 1:].min(axis=0), rows[:, 1:].max(axis=0)
        keys = np.ceil((rows[:, 1:] - low) * (cells / np.maximum(high - low, 1e-300)))
        _, first = np.unique(keys, axis=0, return_index=True)
        if len(first) <= most:
            return np.sort(order[first]), False
        cells = max(1, int(cells * 0.8))
    return np.sort(order), True


def _pareto_mask(rows: FloatArray) -> npt.NDArray[np.bool_]:
    """Which of different rows no other is nowhere worse than."""
    better = np.asarray((rows[:, None, :] <= rows[None, :, :]).all(axis=2))
    np.fill_diagonal(better, False)
    return ~np.asarray(better.any(axis=0))


def _fast_pareto_mask(rows: FloatArray) -> npt.NDArray[np.bool_]:
    """Drops rows that one of the fastest few is nowhere worse than."""
    keep = np.ones(len(rows), dtype=bool)
    for index in range(min(MAX_PAIRWISE_STATES, len(rows))):
        if keep[index]:
            worse = (rows[index] <= rows).all(axis=1)
            worse[index] = False
            keep &= ~worse
    return keep


ActivationSet = tuple[int, ...]
"""Positions of which all that is kept leaves, in order; 0 is the chain's input."""


@dataclass(frozen=True)
class OffloadSets:
    """The fastest `sets` by their `seconds` with fractional communications, fastest first;
    `complete` where no state was dropped that could have been faster."""

    sets: list[ActivationSet]
    seconds: list[float]
    complete: bool


def greedy_offload_set(ways: ChainProblem, budget: int, peak: int) -> ActivationSet:
    """The first activations that together are at least what the `peak` of keeping everything
    exceeds the budget by; none where it does not (S Theorem 8, rounded up)."""
    chosen: list[int] = []
    left = peak - budget
    for position in range(len(ways)):
        if left <= 0:
            break
        chosen.append(position)
        left -= ways.at(position).ways[0].save if position else ways.always_resident
    return tuple(chosen)


def dynprog_offload_sets(
    ways: ChainProblem, budget: int, bandwidth: float, most: int = 16
) -> OffloadSets:
    """Sets by S Algorithm 5 (with the "+" that it lacks before its last idle time), at most `most`.

    The states are those of the chain's true sizes, and few enough of them are kept where there are
    many (`labels`), in place of slots and of the rounding of S 3.3.3.2.
    """
    chain = FluidChain(ways, budget, bandwidth)
    states, complete = initial_fluid_states(), True
    trail: list[tuple[IntArray, IntArray]] = []
    for position in range(1, len(ways) + 1):
        stays, leaves = chain.step(position, states, 0.0), chain.step(position, states, 1.0)
        both = _concatenate_states(stays, leaves)
        count = len(states.seconds)
        fitting = np.flatnonzero(np.isfinite(both.seconds))
        if not fitting.size:
            return OffloadSets([], [], True)
        both = _select_states(both, fitting)
        kept, whole = prune_states(both.seconds, [both.stay, both.sent, both.due])
        complete &= whole
        states = _select_states(both, kept)
        origin = fitting[kept]
        trail.append((origin % count, origin // count))
    total = states.seconds + chain.turn(states)
    order = np.argsort(total, kind="stable")[:most]
    sets = [_backtrack_set(trail, int(index)) for index in order]
    return OffloadSets(sets, [float(total[index]) for index in order], complete)


def _concatenate_states(one: FluidStates, other: FluidStates) -> FluidStates:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return FluidStates(*(np.concatenate(pair) for pair in pairs))


def _select_states(states: FluidStates, which: IntArray) -> FluidStates:
    return FluidStates(*(numbers[which] for numbers in vars(states).values()))


def _backtrack_set(trail: list[tuple[IntArray, IntArray]], index: int) -> ActivationSet:
    """The decisions that led to a state."""
    chosen = []
    for position in range(len(trail) - 1, -1, -1):
        before, leaves = trail[position]
        if leaves[index]:
            chosen.append(position)
        index = int(before[index])
    return tuple(reversed(chosen))
