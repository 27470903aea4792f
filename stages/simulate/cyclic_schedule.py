"""Plays steps that follow each other without a seam: transfers and updates of one step end in the
next one.

The schedule of a cycle is that of one step. Some of its actions, the carried ones, are about the
step before: they wait for what that sent, free its gradients and their copies, and update
parameters in the offload target. The first step runs without them, and what closes the seam behind
the last step is them alone. Memory changes only at places in the order of issue, as in a single
step, so the peaks of the first step, of those that follow and of the close are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tightfit.schemas.actions import (
    Free,
    FreeHostCopy,
    Offload,
    PassGradient,
    Prefetch,
    UpdateOnHost,
    Wait,
)
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.checks.transfers import TRANSFER_CHECK
from tightfit.stages.simulate.checks.updates import (
    UPDATE_CHECK,
    begin_updates,
    check_parameter_places,
    passing_state_sizes,
)
from tightfit.stages.simulate.effects import schedule_effects
from tightfit.stages.simulate.simulate import (
    ACTION_CHECKS,
    SimulationResult,
    pause_gc,
    simulate,
    simulate_step,
    simulation_result,
)
from tightfit.stages.simulate.state import CarriedStep, SimulatorState
from tightfit.util.errors import ScheduleError

MAX_STEPS = 48
"""Steps that are played until their times repeat."""
CLOCK_PRECISION = 1e-9
"""Times of two steps are the same where they differ by no more than this part of a step."""


@dataclass(frozen=True)
class CycleResult:
    """What a cycle costs: the `steady` step, whose `seconds` are those from one step to the next
    and whose `peak` and bytes of the offload target are the most of any step, and the peaks of the
    first step, of one that follows, and of the close."""

    steady: SimulationResult
    first_peak: int
    steady_peak: int
    closing_peak: int


def carried_positions(graph: Graph, steps: Sequence[ScheduleStep]) -> frozenset[int]:
    """The positions of the actions that are about the step before: those on a gradient that has not
    been handed over, or not been sent, and waits for parameters that are not on their way."""
    storage = [value.storage for value in graph.values]
    parts = partial_gradients_by_owner(graph)
    gradients = {storage[found[0]] for found in parts.values()}
    parameters = {value.storage for value in graph.values if value.kind == "parameter"}
    waiting = gradients | parameters
    handed: set[int] = set()
    begun: set[int] = set()
    found = []
    for position, step in enumerate(steps):
        match step.action:
            case PassGradient(value):
                handed.add(storage[value])
            case Offload(value) | Prefetch(value):
                begun.add(storage[value])
            case UpdateOnHost(owner) if storage[parts[owner][0]] not in handed:
                found.append(position)
            case Wait(value) | FreeHostCopy(value) if (
                storage[value] in waiting and storage[value] not in begun
            ):
                found.append(position)
            case Free(value) if storage[value] in gradients and storage[value] not in handed:
                found.append(position)
    return frozenset(found)


def unroll_cycle(graph: Graph, steps: Sequence[ScheduleStep], count: int) -> list[ScheduleStep]:
    """The actions of so many steps of a cycle one after the other, the first one without the
    carried ones."""
    carried = carried_positions(graph, steps)
    first = [step for position, step in enumerate(steps) if position not in carried]
    return [*first, *(step for _ in range(count - 1) for step in steps)]


def simulate_any(
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep],
    link: HostLink | None = None,
    updates: OptimizerPlan | None = None,
) -> tuple[SimulationResult, CycleResult | None]:
    """What a schedule costs that may be a cycle, and that cycle; raises ScheduleError as
    `simulate_cycle` does."""
    if updates is None or not updates.cyclic:
        return simulate(graph, costs, steps, link=link, updates=updates), None
    if link is None:
        raise ScheduleError("a cycle is possible only with an offload target")
    cycle = simulate_cycle(graph, costs, steps, link, updates)
    return cycle.steady, cycle


@pause_gc()
def simulate_cycle(
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep],
    link: HostLink,
    updates: OptimizerPlan,
) -> CycleResult:
    """Plays a cycle until its times repeat, and closes it. Raises ScheduleError as
    `stages.simulate.simulate` does, and where a parameter is used before its update of the step
    before, a gradient is made anew before its update has read it, what a step leaves is not what
    the next one begins with, or the times do not repeat."""
    cycle = _Cycle(graph, costs, list(steps), link, updates)
    cycle.play(first=True)
    first_peak, left = cycle.peak, cycle.seam()
    for _ in range(MAX_STEPS):
        before, seconds = cycle.times(), cycle.state.clock
        steady = cycle.play()
        if cycle.seam() != left:
            raise ScheduleError("a step leaves something else to the next one than it began with")
        precision = CLOCK_PRECISION * max(cycle.state.clock, seconds)
        if _are_close(cycle.times(), before, precision):
            break
    else:
        raise ScheduleError(f"the times of steps do not repeat within {MAX_STEPS} of them")
    steady_peak = cycle.peak
    closing_peak = cycle.close()
    most = max(first_peak, steady_peak, closing_peak)
    transfers = steady.transfers and replace(steady.transfers, host_peak=cycle.state.away.peak)
    steady = replace(steady, peak=most, transfers=transfers)
    return CycleResult(steady, first_peak, steady_peak, closing_peak)


def _are_close(times: Mapping[Any, float], before: Mapping[Any, float], precision: float) -> bool:
    keys = times.keys() | before.keys()
    return all(abs(times.get(key, 0.0) - before.get(key, 0.0)) <= precision for key in keys)


class _Cycle:
    """The steps of a cycle one after the other; the clocks of each begin with 0."""

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        steps: list[ScheduleStep],
        link: HostLink,
        updates: OptimizerPlan,
    ) -> None:
        self.graph, self.costs, self.steps = graph, costs, steps
        if updates.second_tier is not None or updates.microbatches > 1:
            raise ScheduleError("a cycle has neither microbatches nor a second offload tier")
        self.effects = list(schedule_effects(graph, steps))
        self.carried = carried_positions(graph, steps)
        self.state = SimulatorState(graph, costs, frozenset(), link, updates=updates)
        self.state.carried = CarriedStep()
        self.peak = 0

    def play(self, first: bool = False) -> SimulationResult:
        """The next step."""
        if first:
            begin_updates(self.state, self.steps)
        else:
            self._pass_on()
        state = self.state
        filled = []
        for effect in self.effects:
            if not (first and effect.position in self.carried):
                filled.append(simulate_step(state, effect))
        state.position += 1
        for check in ACTION_CHECKS:
            if check not in (TRANSFER_CHECK, UPDATE_CHECK):
                check.finish(state)
        assert state.carried is not None
        if state.carried.updates or state.carried.gradients:
            raise state.refuse(
                f"the updates {sorted(state.carried.updates)} of the step before are not done, and "
                f"its gradients in the storages {sorted(state.carried.gradients)} not freed"
            )
        self._check_left(state)
        found = simulation_result(state, filled)
        self.peak = found.peak
        return replace(found, seconds=state.clock)

    def close(self) -> int:
        """Plays what closes the seam, and returns the peak of that."""
        self._pass_on()
        state, most = self.state, self.state.live_bytes
        for effect in self.effects:
            if effect.position in self.carried:
                simulate_step(state, effect)
                most = max(most, state.live_bytes)
        state.position += 1
        assert state.carried is not None
        if state.carried.updates or state.carried.gradients:
            raise state.refuse("updates are not done, or gradients not freed, at the close")
        TRANSFER_CHECK.finish(state)
        check_parameter_places(state)
        return most

    def _check_left(self, state: SimulatorState) -> None:
        """What is not updated yet can be updated in the offload target."""
        assert state.updates is not None
        left = state.updates.costs.keys() - set(state.updated)
        if here := sorted(left - state.updates.offloaded):
            raise state.refuse(f"the parameters {here} are never updated")

    def seam(self) -> tuple[frozenset[int], ...]:
        """What a step leaves to the next one, but for its times."""
        state = self.state
        away = state.away
        if odd := sorted((state.allocated & state.remote) ^ state.there):
            raise state.refuse(
                f"the parameters in the storages {odd} are not where they were before the step"
            )
        kept = state.allocated & (state.remote | self._left_gradients())
        sets = (kept, away.copies, set(away.moving), away.coming, away.stale, away.old)
        return *map(frozenset, sets), frozenset(self._left_updates())

    def _left_updates(self) -> set[int]:
        """The parameters whose update is left to the next step."""
        state = self.state
        assert state.updates is not None
        return state.updates.costs.keys() - set(state.updated)

    def _left_gradients(self) -> set[int]:
        """The storages of gradients on the device whose update is left to the next step."""
        state = self.state
        return {state.storage(state.parts[value][0]) for value in self._left_updates()}

    def _pass_on(self) -> None:
        """The state that the next step begins with."""
        before = self.state
        left, gradients = self._left_updates(), self._left_gradients() & before.allocated
        state = SimulatorState(
            self.graph, self.costs, before.sums, before.link, updates=before.updates
        )
        state.carried = CarriedStep(left, set(gradients), before.storages_of(left))
        for storage in sorted(gradients):
            state.allocate(storage)
        state.away = before.away
        state.away.restart(before.clock)
        state.staging, state.beside = before.staging, before.beside
        if state.staging is not None and before.updates is not None:
            state.staging.restart(state.transfer_states, before.clock)
            state.staging.expected.extend(passing_state_sizes(before.updates, self.steps))
            state.staging.ahead()
        self.state = state

    def times(self) -> dict[Any, float]:
        """When what is under way at the seam ends, after the end of the step."""
        state, clock = self.state, self.state.clock
        away = state.away
        found: dict[Any, float] = {}
        for name, ends in (("free", away.free_at), ("moving", away.moving), ("ready", away.ready)):
            found |= {(name, key): max(end - clock, 0.0) for key, end in ends.items()}
        if state.staging is not None:
            for number, end in enumerate((*state.staging.coming, *state.staging.free)):
                found["staging", number] = max(end - clock, 0.0)
        return found
