"""Looks for steps that follow each other without a seam (`stages.simulate.cyclic_schedule`).

How much of the device activations have and how much of the link they take, which parameters are
updated where, through how many staging buffers states pass, and how much of the device is left to
what comes ahead are changed one at a time as long as that helps. The seconds of a candidate are
those of the walk that places it; the simulator plays the fastest, and the next one where it refuses
that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.stages.combine.optimizer_offload.activation_schedule import ActivationSchedule
from tightfit.stages.combine.optimizer_offload.cycle_placement import (
    CyclePlacement,
    cycle_windows,
    place_cycle,
)
from tightfit.stages.combine.optimizer_offload.residency import (
    PlacementMemoryError,
    PlacementRequest,
    PlacementTimeError,
)
from tightfit.stages.combine.optimizer_offload.search import (
    ACTIVATION_SHARES,
    OffloadSearch,
    OffloadSearchResult,
)
from tightfit.stages.combine.optimizer_offload.search_space import OffloadChoice
from tightfit.stages.combine.optimizer_offload.state_placement import spread_evenly
from tightfit.stages.simulate.cyclic_schedule import simulate_cycle
from tightfit.util.errors import ScheduleError

FIRST_DEVICE_UPDATES = (1.0, 0.8, 0.6, 0.4, 0.0)
"""Parts of the parameters updated on the device that are tried at first."""
HOST_UPDATE_SPREADS = (0.5, 0.75, 1.0)
AHEAD_SHARES = (0.0, 0.1, 0.2, 0.35)
FIRST_SLACK = 1.1
MAX_REFINED = 2
"""Candidates from which the search goes on."""
LEAST_GAIN = 1e-4
"""The least part of a step's time that makes a candidate a better one."""


@dataclass(frozen=True)
class CycleChoice:
    """Parts: of the room that activations have, of the link that they take, and of the parameters
    updated on the device; the others are spread evenly over the part `spread` of all whose
    gradients are whole first, since these are used last in the next step. States pass through so
    many `buffers`, and a part `ahead` of the room is for parameters that come ahead of their
    use."""

    activations: float
    linked: float
    here: float = 1.0
    spread: float = 0.75
    buffers: int = 32
    ahead: float = 0.0

    @property
    def step(self) -> OffloadChoice:
        """The choice for a single step that it comes closest to."""
        return OffloadChoice(self.activations, self.linked, here=self.here, buffers=self.buffers)


@dataclass(frozen=True)
class CycleCandidate:
    """A choice, the cycle that comes of it, and the optimizer as the simulator takes it, but for
    what is on the device at the seam."""

    choice: CycleChoice
    placement: CyclePlacement
    updates: OptimizerPlan


class CycleSearch:
    """Cycles of the task of a search for single steps, with the schedules of activations of
    that."""

    def __init__(self, search: OffloadSearch) -> None:
        self.task, self.schedules = search.task, search.schedules
        self.tried: dict[CycleChoice, CycleCandidate | None] = {}

    def best(self) -> OffloadSearchResult | None:
        """The fastest plan that is found, None where there is none."""
        self._best_of(self._first(), math.inf, FIRST_SLACK)
        for found in self._fastest()[:MAX_REFINED]:
            self._refine(found)
        for found in self._fastest():
            result = self.played(found)
            if result is not None:
                return result
        return None

    def _fastest(self) -> list[CycleCandidate]:
        found = [each for each in self.tried.values() if each is not None]
        return sorted(found, key=lambda each: each.placement.seconds)

    def _first(self) -> Iterator[CycleChoice]:
        """Parts of the room for activations, with parts of the updates on the device."""
        shares = FIRST_DEVICE_UPDATES if self.task.updates_on_host else (1.0,)
        for activations in ACTIVATION_SHARES:
            for here in shares:
                yield CycleChoice(activations, 0.0, here)

    def _refine(self, found: CycleCandidate) -> None:
        """Changes one choice at a time as long as that makes it faster."""
        best = found
        while True:
            for choices in (self._vary_placement(best.choice), self._vary_bases(best.choice)):
                most = best.placement.seconds * (1 - LEAST_GAIN)
                better = self._best_of(choices, most)
                if better is not None:
                    best = better
                    break
            else:
                return

    def _best_of(
        self, choices: Iterable[CycleChoice], most: float, slack: float = 1.0
    ) -> CycleCandidate | None:
        """The fastest candidate whose steps take less than `most` seconds; those that take `slack`
        times as long as it are placed, too."""
        best, asked = None, list(choices)
        with self.schedules.making(choice.step for choice in asked) as wait:
            for choice in asked:
                wait(choice.step)
                found = self.look(choice, most * slack)
                if found is not None and found.placement.seconds < most:
                    best, most = found, found.placement.seconds
        return best

    def _vary_placement(self, choice: CycleChoice) -> Iterator[CycleChoice]:
        for buffers in self.task.buffer_counts:
            yield replace(choice, buffers=buffers)
        for ahead in AHEAD_SHARES:
            yield replace(choice, ahead=ahead)
        if self.task.updates_on_host:
            for step in (-0.1, -0.05, 0.05, 0.1):
                yield replace(choice, here=round(min(max(choice.here + step, 0.0), 1.0), 3))
            for spread in HOST_UPDATE_SPREADS:
                yield replace(choice, spread=spread)

    def _vary_bases(self, choice: CycleChoice) -> Iterator[CycleChoice]:
        for linked in self.task.link_shares:
            yield replace(choice, linked=linked)
        for step in (-0.1, 0.1):
            if 0 < choice.activations + step < 1:
                yield replace(choice, activations=round(choice.activations + step, 3))

    def look(self, choice: CycleChoice, most: float = math.inf) -> CycleCandidate | None:
        """The cycle of a choice, None where there is none, or where its steps take longer than
        `most` seconds."""
        if choice not in self.tried:
            base = self.schedules.base(choice.step)
            try:
                self.tried[choice] = None if base is None else self._placed(choice, base, most)
            except PlacementTimeError:
                return None
            except PlacementMemoryError:
                self.tried[choice] = None
        return self.tried[choice]

    def _placed(self, choice: CycleChoice, base: ActivationSchedule, most: float) -> CycleCandidate:
        task = self.task
        here = self._here(base, choice)
        updates = task.played(frozenset(), bool(here - task.small), buffers=choice.buffers)
        line = base.peak.copy()
        for value in here & base.gradient_steps.keys():
            line[base.gradient_steps[value]] += task.update_peak(value)
        base = replace(base, peak=line)
        margin = max((task.graph.storages[storage] for storage in task.remote), default=0)
        room = task.room - updates.staging
        kept = int(room * (1 - choice.ahead)) - margin
        seconds_of = {s: task.link.seconds(task.graph.storages[s]) for s in task.remote}
        windows = cycle_windows(base, task.remote, here, task.updates, kept, seconds_of)
        request = PlacementRequest(updates, here, windows, room, max(base.seconds), margin)
        return CycleCandidate(choice, place_cycle(base, request, task.link, most), updates)

    def _here(self, base: ActivationSchedule, choice: CycleChoice) -> frozenset[int]:
        """The parameters updated on the device."""
        task, sizes = self.task, self.task.graph.storages
        values = {value: sizes[storage] for storage, value in task.remote.items()}
        order = [v for v in sorted(base.gradient_steps, key=base.gradient_steps.__getitem__)]
        order = [value for value in order if value in values]
        wanted = (1 - choice.here) * sum(values[value] for value in order)
        first, passed = [], 0.0
        for value in order:
            if passed >= max(choice.spread * sum(map(values.__getitem__, order)), wanted):
                break
            first.append(value)
            passed += values[value]
        chosen = spread_evenly(first, [values[value] for value in first], wanted)
        return task.small | (frozenset(order) - frozenset(chosen))

    def played(self, found: CycleCandidate) -> OffloadSearchResult | None:
        """What the simulator says of a candidate, None where it refuses that, or memory is
        short."""
        task, placed = self.task, found.placement
        updates = replace(found.updates, resident=placed.resident, cyclic=True)
        try:
            cycle = simulate_cycle(task.graph, task.costs, placed.steps, task.link, updates)
        except ScheduleError:
            return None
        played = cycle.steady
        away = played.transfers.host_peak if played.transfers else 0
        if played.peak + updates.staging > task.room or away > task.link.room:
            return None
        return OffloadSearchResult(found.choice.step, updates, played, None, played.seconds, cycle)
