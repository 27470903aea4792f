"""Which activations leave: GREEDY and DYNPROG (S 3.2.2, 3.3.3), for plans that run nothing again.

Both choose by how long fractional communications take, and differ in what they look at: the first
activations until enough has left, or all sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightfit.stages.combine.chain.ways import Ways
from tightfit.stages.combine.offload.fluid import FluidChain, FluidStates, first_states
from tightfit.stages.combine.offload.labels import best_of
from tightfit.stages.combine.vectors import Integers

Positions = tuple[int, ...]
"""Positions of which all that is kept leaves, in order; 0 is the chain's input."""


@dataclass(frozen=True)
class LeavingSets:
    """The fastest `sets` by their `seconds` with fractional communications, fastest first;
    `complete` where no state was dropped that could have been faster."""

    sets: list[Positions]
    seconds: list[float]
    complete: bool


def greedy_set(ways: Ways, budget: int, peak: int) -> Positions:
    """The first activations that together are at least what the `peak` of keeping everything
    exceeds the budget by; none where it does not (S Theorem 8, rounded up)."""
    chosen: list[int] = []
    left = peak - budget
    for position in range(len(ways)):
        if left <= 0:
            break
        chosen.append(position)
        left -= ways.at(position).ways[0].save if position else ways.throughout
    return tuple(chosen)


def dynprog_sets(ways: Ways, budget: int, bandwidth: float, most: int = 16) -> LeavingSets:
    """Sets by S Algorithm 5 (with the "+" that it lacks before its last idle time), at most `most`.

    The states are those of the chain's true sizes, and few enough of them are kept where there are
    many (`labels`), in place of slots and of the rounding of S 3.3.3.2.
    """
    chain = FluidChain(ways, budget, bandwidth)
    states, complete = first_states(), True
    trail: list[tuple[Integers, Integers]] = []
    for position in range(1, len(ways) + 1):
        stays, leaves = chain.step(position, states, 0.0), chain.step(position, states, 1.0)
        both = _joined(stays, leaves)
        count = len(states.seconds)
        fitting = np.flatnonzero(np.isfinite(both.seconds))
        if not fitting.size:
            return LeavingSets([], [], True)
        both = _taken(both, fitting)
        kept, whole = best_of(both.seconds, [both.stay, both.sent, both.due])
        complete &= whole
        states = _taken(both, kept)
        origin = fitting[kept]
        trail.append((origin % count, origin // count))
    total = states.seconds + chain.turn(states)
    order = np.argsort(total, kind="stable")[:most]
    sets = [_walked(trail, int(index)) for index in order]
    return LeavingSets(sets, [float(total[index]) for index in order], complete)


def _joined(one: FluidStates, other: FluidStates) -> FluidStates:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return FluidStates(*(np.concatenate(pair) for pair in pairs))


def _taken(states: FluidStates, which: Integers) -> FluidStates:
    return FluidStates(*(numbers[which] for numbers in vars(states).values()))


def _walked(trail: list[tuple[Integers, Integers]], index: int) -> Positions:
    """The decisions that led to a state."""
    chosen = []
    for position in range(len(trail) - 1, -1, -1):
        before, leaves = trail[position]
        if leaves[index]:
            chosen.append(position)
        index = int(before[index])
    return tuple(reversed(chosen))
