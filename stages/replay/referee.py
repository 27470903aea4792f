"""The referee: plays a schedule step by step at true sizes and refuses what could not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.actions import Accumulate, Compute, FreeCopy, Offload, OptimiseAway, Prefetch
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import Transfers
from tightfit.schemas.schedule import Step
from tightfit.schemas.updates import Updates
from tightfit.stages.replay.rules.registry import RULE_OF, RULES
from tightfit.stages.replay.rules.updates import begin_updates
from tightfit.stages.replay.state import State
from tightfit.stages.replay.uncollected import uncollected
from tightfit.stages.replay.walk import Effect, effects, summed_storages


@dataclass(frozen=True)
class Replay:
    """What a schedule costs.

    `steps` are the schedule's with times, lanes and memory filled in. `peak` is bytes on the device
    above what was allocated when the step began and `peak_step` where it occurs; `saved` is live
    when the forward has ended. `seconds` last until all lanes are through, `forward_seconds` until
    the loss begins. `repeated` counts computations that had been done before, `repeated_seconds`
    what they take. `transfers` is what leaves and comes back, None where nothing does, and
    `overhead` the seconds that this takes of the compute lane; `passing` are the transfers of
    states, which are no steps: lane, begin and end.
    """

    steps: list[Step]
    seconds: float
    peak: int
    peak_step: int
    forward_seconds: float
    saved: int
    repeated: int
    repeated_seconds: float
    transfers: Transfers | None = None
    passing: Sequence[tuple[str, float, float]] = ()
    overhead: float = 0.0


@uncollected()
def replay(
    graph: Graph,
    costs: Costs,
    steps: Sequence[Step],
    accumulate: bool = False,
    link: HostLink | None = None,
    updates: Updates | None = None,
) -> Replay:
    """Plays a schedule of a graph, with a `link` one that takes it, with `updates` a whole step.

    With `accumulate`, `.grad` is already there, so that a gradient is freed once handed over; of
    several microbatches, the first one aside, so is that of a parameter of the device.
    Raises ScheduleError, naming the step, when an input is not live, a storage is freed twice or
    leaked, an op that must run once runs again, random draws change their order, or an output,
    gradient or buffer update is missing. A gradient may be taken up by an optimiser at once, so it
    leaves after the last read of its parameter or input: a later one is refused. So is what a
    transfer may not do (`stages.replay.rules.transfers`), and an update
    (`stages.replay.rules.updates`). The peak of a whole step is without its staging buffers, which
    are there all the time.
    """
    sums = summed_storages(graph, True if accumulate else gradients_there(graph, updates))
    state = State(graph, costs, sums, link, updates=updates)
    begin_updates(state, steps)
    filled = [_played(state, effect) for effect in effects(graph, steps, sums)]
    state.position += 1
    for rule in RULES:
        rule.finish(state)
    own = device_memory(graph)
    peak_step = max(
        (index for index, step in enumerate(filled) if step.memory == own),
        key=lambda index: filled[index].peak,
    )
    away = state.away
    return Replay(
        steps=filled,
        seconds=max([state.clock, *away.free_at.values()]),
        peak=filled[peak_step].peak,
        peak_step=peak_step,
        forward_seconds=state.loss_at,
        saved=state.saved,
        repeated=state.repeated,
        repeated_seconds=state.repeated_seconds,
        transfers=Transfers(away.left, away.returned, away.peak, away.waited)
        if away.free_at
        else None,
        passing=[*away.passing, *(state.beside.passing if state.beside else ())],
        overhead=away.overhead,
    )


def gradients_there(graph: Graph, updates: Updates | None) -> list[int]:
    """The storages of the gradients of parameters that live on the device, where earlier
    microbatches have left some."""
    if updates is None or not (updates.summed or (updates.adds and not updates.first)):
        return []
    return [
        graph.values[gradient.gradient].storage
        for gradient in graph.gradients
        if graph.values[gradient.value].kind == "parameter" and gradient.value not in updates.remote
    ]


def device_memory(graph: Graph) -> str:
    """The memory of the device, as the steps of a schedule name it."""
    return f"{graph.device}/memory"


def _played(state: State, effect: Effect) -> Step:
    """A step with its time and memory filled in."""
    action = effect.step.action
    state.position, start = effect.position, state.clock
    drawing = isinstance(action, Compute) and action.op == state.restoring
    if state.restoring != NONE and not drawing:
        raise state.refuse("a restored random state is not used at once")
    rule = RULE_OF.get(type(action))
    if rule is None:
        raise state.refuse(f"{type(action).__name__.lower()} is not possible on one device")
    peak = rule.play(state, effect)
    found = Step(
        action,
        lane=f"{state.graph.device}/compute",
        memory=device_memory(state.graph),
        start=start,
        end=state.clock,
        live=state.live_bytes,
        peak=max(peak, state.live_bytes),
    )
    return found if effect.moves == NONE else _linked(state, found)


def _linked(state: State, step: Step) -> Step:
    """The step of a transfer in its lane, and the bytes of the memory that changes: what it sends
    takes them in the other one, what it brings back on the device."""
    link, away = state.link, state.away
    assert link is not None
    if isinstance(step.action, Offload | Prefetch | OptimiseAway | Accumulate):
        start, end = away.span
        lane = link.lane(isinstance(step.action, Offload))
        if isinstance(step.action, OptimiseAway | Accumulate):
            lane = f"{link.to}/compute"
        step = replace(step, lane=lane, start=start, end=end)
    if isinstance(step.action, Offload | FreeCopy | OptimiseAway | Accumulate):
        step = replace(step, memory=link.other, live=away.bytes, peak=away.bytes)
    return step
