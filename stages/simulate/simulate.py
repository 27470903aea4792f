"""The simulator: plays a schedule step by step at true sizes and refuses what could not run."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.actions import (
    ACTION_NAMES,
    AccumulateOnHost,
    Action,
    Compute,
    FreeHostCopy,
    Offload,
    Prefetch,
    UpdateOnHost,
)
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.plan import TransferTotals
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.checks.compute import COMPUTE_CHECK, RANDOM_STATE_CHECK
from tightfit.stages.simulate.checks.gradients_and_frees import FREE_CHECK, GRADIENT_CHECK
from tightfit.stages.simulate.checks.transfers import TRANSFER_CHECK
from tightfit.stages.simulate.checks.updates import UPDATE_CHECK, begin_updates
from tightfit.stages.simulate.effects import Effect, accumulated_gradient_storages, schedule_effects
from tightfit.stages.simulate.state import ActionCheck, SimulatorState
from tightfit.util.errors import ScheduleError

ACTION_CHECKS: list[ActionCheck] = [
    COMPUTE_CHECK,
    GRADIENT_CHECK,
    RANDOM_STATE_CHECK,
    FREE_CHECK,
    TRANSFER_CHECK,
    UPDATE_CHECK,
]
"""All checks of actions, in the order in which they look at the end of a schedule. A new one is a
line here."""
CHECK_OF_ACTION: dict[type[Action], ActionCheck] = {
    kind: rule for rule in ACTION_CHECKS for kind in rule.actions
}


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Within it, or within a function that it decorates, the garbage collector rests, if it was at
    work: it would look again and again at thousands of records that all stay."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True)
class SimulationResult:
    """What a schedule costs.

    `steps` are the schedule's with times, streams and memory filled in. `peak` is bytes on the
    device above what was allocated when the step began and `peak_step` where it occurs; `saved` is
    live when the forward has ended. `seconds` last until all streams are through, `forward_seconds`
    until the loss begins. `repeated` counts computations that had been done before,
    `repeated_seconds` what they take. `transfers` is what leaves and comes back, None where nothing
    does, and `overhead` the seconds that this takes of the compute stream; `passing` are the
    transfers of states, which are no steps: stream, begin and end.
    """

    steps: list[ScheduleStep]
    seconds: float
    peak: int
    peak_step: int
    forward_seconds: float
    saved: int
    repeated: int
    repeated_seconds: float
    transfers: TransferTotals | None = None
    passing: Sequence[tuple[str, float, float]] = ()
    overhead: float = 0.0


@pause_gc()
def simulate(
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep],
    accumulate: bool = False,
    link: HostLink | None = None,
    updates: OptimizerPlan | None = None,
) -> SimulationResult:
    """Plays a schedule of a graph, with a `link` one that takes it, with `updates` a whole step.

    With `accumulate`, `.grad` is already there, so that a gradient is freed once handed over; of
    several microbatches, the first one aside, so is that of a parameter of the device.
    Raises ScheduleError, naming the step, when an input is not live, a storage is freed twice or
    leaked, an op that must run once runs again, random draws change their order, or an output,
    gradient or buffer update is missing. A gradient may be taken up by an optimizer at once, so it
    leaves after the last read of its parameter or input: a later one is refused. So is what a
    transfer may not do (`stages.simulate.checks.transfers`), and an update
    (`stages.simulate.checks.updates`). The peak of a whole step is without its staging buffers,
    which are there all the time."""
    if updates is not None and updates.cyclic:
        raise ScheduleError("steps follow each other without a seam, and are played as a cycle")
    sums = accumulated_gradient_storages(
        graph, True if accumulate else resident_gradients(graph, updates)
    )
    state = SimulatorState(graph, costs, sums, link, updates=updates)
    begin_updates(state, steps)
    filled = [simulate_step(state, effect) for effect in schedule_effects(graph, steps, sums)]
    state.position += 1
    for rule in ACTION_CHECKS:
        rule.finish(state)
    return simulation_result(state, filled)


def simulation_result(state: SimulatorState, filled: list[ScheduleStep]) -> SimulationResult:
    """What the steps of a schedule cost that were played to the end."""
    own = device_memory_name(state.graph)
    peak_step = max(
        (index for index, step in enumerate(filled) if step.memory == own),
        key=lambda index: filled[index].peak,
    )
    away = state.away
    return SimulationResult(
        steps=filled,
        seconds=max([state.clock, *away.free_at.values()]),
        peak=filled[peak_step].peak,
        peak_step=peak_step,
        forward_seconds=state.loss_at,
        saved=state.saved,
        repeated=state.repeated,
        repeated_seconds=state.repeated_seconds,
        transfers=TransferTotals(away.left, away.returned, away.peak, away.waited)
        if away.free_at
        else None,
        passing=[*away.passing, *(state.beside.passing if state.beside else ())],
        overhead=away.overhead,
    )


def resident_gradients(graph: Graph, updates: OptimizerPlan | None) -> list[int]:
    """The storages of the gradients of parameters that live on the device, where earlier
    microbatches have left some."""
    if updates is None or not (updates.has_sums or (updates.accumulates and not updates.first)):
        return []
    return [
        graph.values[gradient.gradient].storage
        for gradient in graph.gradients
        if graph.values[gradient.value].kind == "parameter"
        and gradient.value not in updates.offloaded
    ]


def device_memory_name(graph: Graph) -> str:
    """The memory of the device, as the steps of a schedule name it."""
    return f"{graph.device}/memory"


def simulate_step(state: SimulatorState, effect: Effect) -> ScheduleStep:
    """A step with its time and memory filled in."""
    action = effect.step.action
    state.position, start = effect.position, state.clock
    drawing = isinstance(action, Compute) and action.op == state.restoring
    if state.restoring != NO_VALUE and not drawing:
        raise state.refuse("a restored random state is not used at once")
    rule = CHECK_OF_ACTION.get(type(action))
    if rule is None:
        raise state.refuse(f"{ACTION_NAMES[type(action)]} is not possible on one device")
    peak = rule.play(state, effect)
    found = ScheduleStep(
        action,
        stream=f"{state.graph.device}/compute",
        memory=device_memory_name(state.graph),
        start=start,
        end=state.clock,
        live=state.live_bytes,
        peak=max(peak, state.live_bytes),
    )
    return found if effect.moves == NO_VALUE else _transfer_step(state, found)


def _transfer_step(state: SimulatorState, step: ScheduleStep) -> ScheduleStep:
    """The step of a transfer in its stream, and the bytes of the memory that changes: what it sends
    takes them in the other one, what it brings back on the device."""
    link, away = state.link, state.away
    assert link is not None
    if isinstance(step.action, Offload | Prefetch | UpdateOnHost | AccumulateOnHost):
        start, end = away.span
        stream = link.stream(isinstance(step.action, Offload))
        if isinstance(step.action, UpdateOnHost | AccumulateOnHost):
            stream = f"{link.to}/compute"
        step = replace(step, stream=stream, start=start, end=end)
    if isinstance(step.action, Offload | FreeHostCopy | UpdateOnHost | AccumulateOnHost):
        step = replace(step, memory=link.other, live=away.bytes, peak=away.bytes)
    return step


@dataclass(frozen=True)
class MicrobatchTotals:
    """The seconds of all microbatches, the most bytes of any, and what all of them transfer."""

    seconds: float
    peak: int
    transfers: TransferTotals | None


def sum_microbatches(
    last: SimulationResult, adding: SimulationResult | None, count: int
) -> MicrobatchTotals:
    """What `count` microbatches cost, of which all but the last one are `adding`, where there are
    several."""
    if adding is None:
        return MicrobatchTotals(last.seconds, last.peak, last.transfers)
    more, own, other = count - 1, last.transfers, adding.transfers
    transfers = own or other
    if own is not None and other is not None:
        transfers = TransferTotals(
            own.offloaded_bytes + more * other.offloaded_bytes,
            own.prefetched_bytes + more * other.prefetched_bytes,
            max(own.host_peak, other.host_peak),
            own.wait_seconds + more * other.wait_seconds,
        )
    seconds = last.seconds + more * adding.seconds
    return MicrobatchTotals(seconds, max(last.peak, adding.peak), transfers)
