"""Allocation and 1-periodic schedule by integer programming (S ch. 6).

One program gives layers to devices with the least load, another schedules an allocation layer by
layer. An allocation that cannot be scheduled any faster is excluded, until no other one has a load
below the best schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from tightfit.stages.combine.milp import (
    BOUND_MARGIN,
    EXACT_LIMITS,
    MilpBuilder,
    SolverLimits,
    solve_milp,
)
from tightfit.stages.combine.pipeline.allocation import Allocation, Stage
from tightfit.stages.combine.pipeline.allocator import AllocationProblem, AllocationResult
from tightfit.stages.combine.pipeline.allocators.madpipe import STRATEGY as MADPIPE
from tightfit.stages.combine.pipeline.allocators.madpipe import min_layer_bytes
from tightfit.stages.combine.pipeline.layers import PipelineLayers
from tightfit.stages.combine.pipeline.periodic_schedule import schedule_periodic
from tightfit.util.solver_engines import ENGINE_TITLES
from tightfit.util.strategies import ALLOCATORS


@dataclass(frozen=True)
class AssignmentSolution:
    """The allocation with the least load that is not excluded, None where none was found; `bound`
    is the ticks that none of them is below, inf where there is none."""

    allocation: Allocation | None
    bound: float
    clock: bool


def assign_layers(
    layers: PipelineLayers,
    names: tuple[str, ...],
    memory: int,
    below: int,
    excluded: Sequence[Allocation],
    limits: SolverLimits,
) -> AssignmentSolution:
    """The allocation with the least load under `below` ticks that could fit `memory`.

    A device stores of each of its layers, at any moment, at least one batch less than are in
    flight. In flight are as many as periods of less than `below` ticks pass from the layer's
    forward to its backward. When the device's last layer runs a forward, it stores one batch of
    each layer.
    """
    program = _AssignmentProgram(layers, min(len(names), layers.count), max(below - 1, 1))
    program.place()
    for device in range(program.devices):
        program.load(device)
        program.fit(device, memory)
    for one, other in combinations(range(program.devices), 2):
        program.carry(one, other)
    for allocation in excluded:
        program.exclude(allocation)
    found = solve_milp(program.rows.sparse(), limits, [])
    if not len(found.values):
        return AssignmentSolution(None, found.bound * program.unit, found.clock)
    allocation = Allocation(layers, program.stages(found.values.tolist()), names).merged()
    return AssignmentSolution(
        allocation, min(found.bound * program.unit, allocation.load), found.clock
    )


class _AssignmentProgram:
    """Minimizes the `period`, in shares of `unit` ticks; `on[l][d]` says whether layer l + 1 is on
    device d, where equal devices come in the order of their first layers."""

    def __init__(self, layers: PipelineLayers, devices: int, unit: int) -> None:
        self.layers, self.devices, self.unit = layers, devices, unit
        self.rows = MilpBuilder()
        self.least = np.diff(min_layer_bytes(layers, unit))
        self.period = self.rows.variable(0.0, 1.0, cost=1.0)
        self.on = [
            [
                self.rows.variable(0.0, 1.0 if d <= layer else 0.0, integral=True)
                for d in range(devices)
            ]
            for layer in range(layers.count)
        ]

    def place(self) -> None:
        """Each layer is on one device, on a further one only behind layers on the one before."""
        for layer, places in enumerate(self.on):
            self.rows.row_at_least(1.0, dict.fromkeys(places, 1.0))
            self.rows.row_at_most(1.0, dict.fromkeys(places, 1.0))
            for d in range(1, self.devices):
                earlier = {self.on[before][d - 1]: 1.0 for before in range(layer)}
                self.rows.row_at_least(0.0, {**earlier, places[d]: -1.0})

    def load(self, d: int) -> None:
        """A device works no longer than the period."""
        ticks = np.diff(self.layers.load)
        load = {on[d]: -float(own) / self.unit for on, own in zip(self.on, ticks, strict=True)}
        self.rows.row_at_least(0.0, {self.period: 1.0, **load})

    def fit(self, d: int, memory: int) -> None:
        """The least that a device stores fits, with the buffers of cuts beside its layers."""
        needed = {on[d]: float(own) for on, own in zip(self.on, self.least, strict=True)}
        for cut in range(1, self.layers.count):
            if self.layers.buffer[cut]:
                across = self._crosses(self.on[cut - 1][d], self.on[cut][d])
                needed[across] = float(self.layers.buffer[cut])
        self.rows.row_at_most(1.0, {c: size / max(memory, 1) for c, size in needed.items()})

    def carry(self, one: int, other: int) -> None:
        """What crosses cuts between two devices takes their link no longer than the period."""
        carried = {}
        for cut in range(1, self.layers.count):
            if self.layers.cut[cut]:
                between = self.rows.variable(0.0, 1.0)
                for here, there in ((one, other), (other, one)):
                    weights = {self.on[cut - 1][here]: -1.0, self.on[cut][there]: -1.0}
                    self.rows.row_at_least(-1.0, {between: 1.0, **weights})
                carried[between] = -float(self.layers.cut[cut]) / self.unit
        self.rows.row_at_least(0.0, {self.period: 1.0, **carried})

    def exclude(self, allocation: Allocation) -> None:
        """Some layer is elsewhere than in an allocation."""
        taken = [
            self.on[layer - 1][stage.device]
            for stage in allocation.stages
            for layer in range(stage.first, stage.last + 1)
        ]
        self.rows.row_at_most(self.layers.count - 1.0, dict.fromkeys(taken, 1.0))

    def stages(self, values: Sequence[float]) -> tuple[Stage, ...]:
        """The stages of a solution, one a layer."""
        chosen = [
            max(range(self.devices), key=[values[c] for c in on].__getitem__) for on in self.on
        ]
        return tuple(Stage(layer, layer, device) for layer, device in enumerate(chosen, start=1))

    def _crosses(self, one: int, other: int) -> int:
        """A column that is 1 where exactly one of two is."""
        column = self.rows.variable(0.0, 1.0)
        self.rows.row_at_least(0.0, {column: 1.0, one: -1.0, other: 1.0})
        self.rows.row_at_least(0.0, {column: 1.0, one: 1.0, other: -1.0})
        return column


MAX_ALLOCATIONS = 400
"""Allocations that are tried at most."""
MILP_LIMITS = (
    replace(EXACT_LIMITS, nodes=100_000, seconds=60.0),
    replace(EXACT_LIMITS, nodes=20_000, seconds=30.0),
)
"""Those of an assignment, and of a schedule."""


class PipelineIlp:
    """Starts from MadPipe's answer, and ends with a bound."""

    about = ALLOCATORS["pipeline_ilp"]

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        """The best allocation and schedule found, None where none fits."""
        layers, names, memory = instance.layers, instance.names, instance.memory
        assigning, scheduling = (replace(each, engine=instance.engine) for each in MILP_LIMITS)
        start = MADPIPE.allocate(replace(instance, period=None))
        best = None if start is None else (start.allocation, start.timing)
        # Far above what one device takes for all, or the margin of a bound would rule that out.
        below = 2 * max(layers.all_ticks, 1) if best is None else best[1].period
        bound, clock = float(below), False
        excluded: list[Allocation] = []
        while len(excluded) < MAX_ALLOCATIONS and below > instance.lower_bound:
            found = assign_layers(layers, names, memory, below, excluded, assigning)
            clock = clock or found.clock
            if found.allocation is None or found.bound >= below * (1 - 2 * BOUND_MARGIN):
                bound = min(bound, found.bound)
                break
            whole = schedule_periodic(found.allocation, memory, below, scheduling)
            if whole.timing is not None:
                best, below = (found.allocation, whole.timing), whole.timing.period
            parts = found.allocation.layer_by_layer()
            split = schedule_periodic(parts, memory, below, scheduling)
            if split.timing is not None:
                best, below = (parts, split.timing), split.timing.period
            clock = clock or whole.clock or split.clock
            bound = min(bound, split.bound)
            excluded.append(found.allocation)
        else:
            bound = min(bound, instance.lower_bound)
        if best is None:
            return None
        bound = max(min(bound, best[1].period), instance.lower_bound)
        return AllocationResult(
            *best, bound, f"{ENGINE_TITLES[instance.engine]}, integer programs", clock
        )


STRATEGY = PipelineIlp()
