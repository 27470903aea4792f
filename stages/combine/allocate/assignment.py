"""Which layer goes to which device: an integer program over loads of devices and links and over
what memory needs at least, without a schedule. The value of the program bounds the period of every
pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tightfit.stages.combine.allocate.allocation import Allocation, Stage
from tightfit.stages.combine.allocate.integer import IntegerLimits, IntegerProgram
from tightfit.stages.combine.allocate.layers import Layers
from tightfit.stages.combine.allocate.special import least_bytes


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
    limits: IntegerLimits,
) -> Assigned:
    """The allocation with the least load under `below` ticks that could fit `memory`.

    A device stores of each of its layers, at any moment, at least one batch less than are in
    flight. In flight are as many as periods of less than `below` ticks pass from the layer's
    forward to its backward. When the device's last layer runs a forward, it stores one batch of
    each layer.
    """
    program = _Program(layers, min(len(names), layers.count), max(below - 1, 1))
    program.place()
    for device in range(program.devices):
        program.load(device)
        program.fit(device, memory)
    for one, other in combinations(range(program.devices), 2):
        program.carry(one, other)
    for allocation in excluded:
        program.exclude(allocation)
    found = program.rows.solve(limits)
    if not len(found.values):
        return Assigned(None, found.bound * program.unit, found.clock)
    allocation = Allocation(layers, program.stages(found.values), names).merged()
    return Assigned(allocation, min(found.bound * program.unit, allocation.load), found.clock)


class _Program:
    """Minimises the `period`, in shares of `unit` ticks; `on[l][d]` says whether layer l + 1 is on
    device d, where equal devices come in the order of their first layers."""

    def __init__(self, layers: Layers, devices: int, unit: int) -> None:
        self.layers, self.devices, self.unit = layers, devices, unit
        self.rows = IntegerProgram()
        self.least = np.diff(least_bytes(layers, unit))
        self.period = self.rows.column(0.0, 1.0, cost=1.0)
        self.on = [
            [
                self.rows.column(0.0, 1.0 if d <= layer else 0.0, integral=True)
                for d in range(devices)
            ]
            for layer in range(layers.count)
        ]

    def place(self) -> None:
        """Each layer is on one device, on a further one only behind layers on the one before."""
        for layer, places in enumerate(self.on):
            self.rows.at_least(1.0, dict.fromkeys(places, 1.0))
            self.rows.at_most(1.0, dict.fromkeys(places, 1.0))
            for d in range(1, self.devices):
                earlier = {self.on[before][d - 1]: 1.0 for before in range(layer)}
                self.rows.at_least(0.0, {**earlier, places[d]: -1.0})

    def load(self, d: int) -> None:
        """A device works no longer than the period."""
        ticks = np.diff(self.layers.load)
        load = {on[d]: -float(own) / self.unit for on, own in zip(self.on, ticks, strict=True)}
        self.rows.at_least(0.0, {self.period: 1.0, **load})

    def fit(self, d: int, memory: int) -> None:
        """The least that a device stores fits, with the buffers of cuts beside its layers."""
        needed = {on[d]: float(own) for on, own in zip(self.on, self.least, strict=True)}
        for cut in range(1, self.layers.count):
            if self.layers.buffer[cut]:
                across = self._crosses(self.on[cut - 1][d], self.on[cut][d])
                needed[across] = float(self.layers.buffer[cut])
        self.rows.at_most(1.0, {c: size / max(memory, 1) for c, size in needed.items()})

    def carry(self, one: int, other: int) -> None:
        """What crosses cuts between two devices takes their link no longer than the period."""
        carried = {}
        for cut in range(1, self.layers.count):
            if self.layers.cut[cut]:
                between = self.rows.column(0.0, 1.0)
                for here, there in ((one, other), (other, one)):
                    weights = {self.on[cut - 1][here]: -1.0, self.on[cut][there]: -1.0}
                    self.rows.at_least(-1.0, {between: 1.0, **weights})
                carried[between] = -float(self.layers.cut[cut]) / self.unit
        self.rows.at_least(0.0, {self.period: 1.0, **carried})

    def exclude(self, allocation: Allocation) -> None:
        """Some layer is elsewhere than in an allocation."""
        taken = [
            self.on[layer - 1][stage.device]
            for stage in allocation.stages
            for layer in range(stage.first, stage.last + 1)
        ]
        self.rows.at_most(self.layers.count - 1.0, dict.fromkeys(taken, 1.0))

    def stages(self, values: Sequence[float]) -> tuple[Stage, ...]:
        """The stages of a solution, one a layer."""
        chosen = [
            max(range(self.devices), key=[values[c] for c in on].__getitem__) for on in self.on
        ]
        return tuple(Stage(layer, layer, device) for layer, device in enumerate(chosen, start=1))

    def _crosses(self, one: int, other: int) -> int:
        """A column that is 1 where exactly one of two is."""
        column = self.rows.column(0.0, 1.0)
        self.rows.at_least(0.0, {column: 1.0, one: -1.0, other: 1.0})
        self.rows.at_least(0.0, {column: 1.0, one: 1.0, other: -1.0})
        return column
