"""The referee: plays a schedule step by step at true sizes and refuses what could not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from schemas.actions import Compute
from schemas.costs import Costs
from schemas.graph import NONE, Graph
from schemas.schedule import Step
from stages.replay.rules.registry import RULE_OF, RULES
from stages.replay.state import State
from stages.replay.walk import Effect, effects


@dataclass(frozen=True)
class Replay:
    """What a schedule costs.

    `steps` are the schedule's with times, lanes and memory filled in. `peak` is bytes above what
    was allocated when the step began and `peak_step` where it occurs; `saved` is live when the
    forward has ended. `seconds` add up all steps, `forward_seconds` those before the loss.
    `repeated` counts computations that had been done before, `repeated_seconds` what they take.
    """

    steps: list[Step]
    seconds: float
    peak: int
    peak_step: int
    forward_seconds: float
    saved: int
    repeated: int
    repeated_seconds: float


def replay(graph: Graph, costs: Costs, steps: Sequence[Step], accumulate: bool = False) -> Replay:
    """Plays a schedule of a graph.

    With `accumulate`, `.grad` is already there, so that a gradient is freed once handed over.
    Raises ScheduleError, naming the step, when an input is not live, a storage is freed twice or
    leaked, an op that must run once runs again, random draws change their order, or an output,
    gradient or buffer update is missing. A gradient may be taken up by an optimiser at once, so it
    leaves after the last read of its parameter or input: a later one is refused.
    """
    state = State(graph, costs, accumulate)
    filled = [_played(state, effect) for effect in effects(graph, steps, accumulate)]
    state.position += 1
    for rule in RULES:
        rule.finish(state)
    peak_step = max(range(len(filled)), key=lambda index: filled[index].peak)
    return Replay(
        steps=filled,
        seconds=state.clock,
        peak=filled[peak_step].peak,
        peak_step=peak_step,
        forward_seconds=state.loss_at,
        saved=state.saved,
        repeated=state.repeated,
        repeated_seconds=state.repeated_seconds,
    )


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
    return replace(
        effect.step,
        lane=f"{state.graph.device}/compute",
        memory=f"{state.graph.device}/memory",
        start=start,
        end=state.clock,
        live=state.live_bytes,
        peak=max(peak, state.live_bytes),
    )
