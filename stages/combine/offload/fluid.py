"""Offloading with fractional communications: memory follows a transfer as it proceeds.

All positions run once and keep everything; what leaves is sent in the order of the chain and comes
back in the opposite one, all of the former first (S 3.3.2, Assumptions 3). `FluidChain.step` is one
position of S eq. 3.4-3.15 on arrays of states, `FluidChain.turn` the idle time at the loss,
eq. 3.16-3.17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tightfit.stages.combine.chain.ways import Ways
from tightfit.stages.combine.vectors import Floats

FASTEST = 1e30
"""Bytes a second that stand for no time at all."""


@dataclass(frozen=True)
class FluidStates:
    """States before a position: the bytes made before the last position that `stay` on the device,
    the bytes that are to be `sent` then, and those to be back (`due`) there. Bytes are negative
    where the link has been idle since for as many. `seconds` are those so far, from both ends of
    the step."""

    stay: Floats
    sent: Floats
    due: Floats
    seconds: Floats


def first_states() -> FluidStates:
    """The one state before position 1."""
    return FluidStates(np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))


class FluidChain:
    """The sizes and times of a chain by position 0..L+1, with a budget and a bandwidth."""

    def __init__(self, ways: Ways, budget: int, bandwidth: float) -> None:
        first = [one.ways[0] for one in ways.positions]
        deltas = [0, *(one.delta for one in ways.positions)]
        self.length = len(ways)
        self.budget = float(budget)
        self.bandwidth = min(bandwidth, FASTEST)
        self.kept = np.array([ways.throughout, *(way.save for way in first)], dtype=np.float64)
        grads = np.array([0, *(one.gradient for one in ways.positions)], dtype=np.float64)
        self.grown: Floats = grads.sum() - np.cumsum(grads)
        self.forward = np.array([0.0, *(way.forward_seconds for way in first)])
        self.backward = np.array([0.0, *(way.backward_seconds for way in first)])
        self.needs_forward = np.array([0, *(way.forward_peak for way in first)]) + float(deltas[-1])
        self.needs_backward = np.array([0, *(way.backward_peak for way in first)]) + self.grown

    def waits(self, position: int, states: FluidStates) -> tuple[Floats, Floats]:
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

    def turn(self, states: FluidStates) -> Floats:
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
        self, moved: Floats, idle: Floats, stay: Floats, needs: Floats, seconds: Floats
    ) -> Floats:
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


def fluid_seconds(ways: Ways, budget: int, bandwidth: float, shares: Sequence[float]) -> float:
    """The seconds of a chain whose positions' inputs leave for those `shares` (of position 0, the
    chain's input, first), infinite where the budget is too small."""
    chain = FluidChain(ways, budget, bandwidth)
    states = first_states()
    for position, share in enumerate(shares, start=1):
        states = chain.step(position, states, share)
    found = states.seconds + chain.turn(states)
    return float(found[0]) if np.isfinite(states.seconds[0]) else float("inf")
