"""Which layer goes to which device: an integer program over loads of devices and links and over
what memory needs at least, without a schedule. Its value bounds the period of every pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from stages.combine.allocate.allocation import Allocation, Stage
from stages.combine.allocate.integer import IntegerProgram, Limits
from stages.combine.allocate.layers import Layers
from stages.combine.allocate.special import least_bytes


@dataclass(frozen=True)
class Assigned:
    """The allocation with the least load that is not excluded, None where none was found; `bound`
    is the ticks that none of them is below, inf where there is none."""

    allocation: Allocation | None
    bound: float
    clock: bool


def assign(
    layers: Layers,
    names: tuple[str, ...],
    memory: int,
    below: int,
    excluded: Sequence[Allocation],
    limits: Limits,
) -> Assigned:
    """The allocation with the least load under `below` ticks that could fit `memory`.

    At any moment a device stores of each of its layers at least one batch less than are in flight,
    and these are as many as periods of less than `below` ticks pass from the layer's forward to
    its backward; and when its last layer runs a forward, one batch of each of its layers.
    """
    count = layers.count
    devices = min(len(names), count)
    program = IntegerProgram()
    unit = max(below - 1, 1)
    least = np.diff(least_bytes(layers, unit))
    period = program.column(0.0, 1.0, cost=1.0)
    # on[l][d]: whether layer l + 1 is on device d
    on = [
        [program.column(0.0, 1.0 if d <= number else 0.0, integral=True) for d in range(devices)]
        for number in range(count)
    ]
    for number in range(count):
        program.at_least(1.0, dict.fromkeys(on[number], 1.0))
        program.at_most(1.0, dict.fromkeys(on[number], 1.0))
        for d in range(1, devices):
            earlier = {on[before][d - 1]: 1.0 for before in range(number)}
            program.at_least(0.0, {**earlier, on[number][d]: -1.0})
    for d in range(devices):
        load = {
            on[number][d]: -float(layers.load[number + 1] - layers.load[number]) / unit
            for number in range(count)
        }
        program.at_least(0.0, {period: 1.0, **load})
        needed = {on[number][d]: float(least[number]) for number in range(count)}
        for cut in range(1, count):
            if layers.buffer[cut]:
                needed[_crosses(program, on[cut - 1][d], on[cut][d])] = float(layers.buffer[cut])
        program.at_most(1.0, {c: size / max(memory, 1) for c, size in needed.items()})
    for one, other in combinations(range(devices), 2):
        carried = {}
        for cut in range(1, count):
            if layers.cut[cut]:
                between = program.column(0.0, 1.0)
                for here, there in ((one, other), (other, one)):
                    weights = {on[cut - 1][here]: -1.0, on[cut][there]: -1.0}
                    program.at_least(-1.0, {between: 1.0, **weights})
                carried[between] = -float(layers.cut[cut]) / unit
        program.at_least(0.0, {period: 1.0, **carried})
    for allocation in excluded:
        taken = [
            on[layer - 1][s.device]
            for s in allocation.stages
            for layer in range(s.first, s.last + 1)
        ]
        program.at_most(count - 1.0, dict.fromkeys(taken, 1.0))
    found = program.solve(limits)
    if not len(found.values):
        return Assigned(None, found.bound * unit, found.clock)
    stages = [
        Stage(
            number + 1, number + 1, max(range(devices), key=lambda d: found.values[on[number][d]])
        )
        for number in range(count)
    ]
    allocation = Allocation(layers, tuple(stages), names).merged()
    return Assigned(allocation, min(found.bound * unit, allocation.load), found.clock)


def _crosses(program: IntegerProgram, one: int, other: int) -> int:
    """A column that is 1 where exactly one of two is."""
    column = program.column(0.0, 1.0)
    program.at_least(0.0, {column: 1.0, one: -1.0, other: 1.0})
    program.at_least(0.0, {column: 1.0, one: 1.0, other: -1.0})
    return column
