"""What placing parameters has to know of a schedule that has all of them on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tightfit.schemas.actions import Compute, Gradient, RestoreRandom, Wait
from tightfit.schemas.contributions import contributions
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.schedule import Step
from tightfit.stages.replay.referee import replay
from tightfit.stages.replay.walk import effects

Line = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Base:
    """A schedule with, by step, its seconds in the compute lane, the most bytes ahead of it and
    within it, and the parameters that it reads, as storages. The bytes are without gradients of
    parameters that were whole before; the last of them are those after the step. `touches` are the
    steps that read each parameter, `wholes` the steps at which the gradient of each (a value) is
    whole, in order. `sees` and `views` are parameters and views of them (values): what each step
    reads of these, and what it makes.
    """

    graph: Graph
    steps: list[Step]
    seconds: list[float]
    peak: Line
    reads: list[tuple[int, ...]]
    touches: dict[int, list[int]]
    wholes: dict[int, int]
    sees: list[tuple[int, ...]]
    views: list[tuple[int, ...]]
    rest: list[float]
    restoring: float

    def __len__(self) -> int:
        return len(self.steps)


def base_of(
    graph: Graph,
    costs: Costs,
    steps: Sequence[Step],
    remote: Mapping[int, int],
    link: HostLink | None,
) -> Base:
    """The base of a schedule; `remote` are the parameters that live in the other memory, by
    storage. Raises ScheduleError where the referee refuses the schedule."""
    played = replay(graph, costs, steps, link=link)
    own = played.steps[0].memory
    storage = [value.storage for value in graph.values]
    parts = contributions(graph)
    owners = {found[0]: owner for owner, found in parts.items()}
    peak = np.zeros(len(steps) + 1, np.int64)
    seconds, reads, least = [], [], []
    sees, views = [], []
    view_ops, restoring = graph.view_ops(), 0.0
    touches: dict[int, list[int]] = {}
    wholes: dict[int, int] = {}
    gone = live = 0
    for position, effect in enumerate(effects(graph, steps)):
        step = played.steps[position]
        peak[position] = live - gone
        if step.memory == own:
            peak[position] = max(step.peak, live) - gone
            live = step.live
        read = [value for value in effect.reads if value != NONE and storage[value] in remote]
        sees.append(tuple(read))
        views.append(tuple([value for value in effect.makes if storage[value] in remote]))
        own_reads = tuple(dict.fromkeys(storage[value] for value in read)) if effect.runs else ()
        for parameter in own_reads:
            touches.setdefault(parameter, []).append(position)
        reads.append(own_reads)
        if isinstance(step.action, Gradient) and step.action.value in owners:
            owner = owners[step.action.value]
            if graph.values[owner].kind == "parameter":
                wholes[owner] = position
                gone += graph.storages[storage[step.action.value]]
        computes = step.lane.endswith("/compute") and not isinstance(step.action, Wait)
        own_seconds = step.end - step.start if computes else 0.0
        seconds.append(own_seconds)
        is_view = effect.op is not None and effect.op.id in view_ops
        least.append(0.0 if is_view else own_seconds)
        restoring += own_seconds if isinstance(step.action, RestoreRandom) else 0.0
    peak[len(steps)] = live - gone
    rest = [*accumulate(reversed(least), initial=0.0)][::-1]
    return Base(
        graph, list(steps), seconds, peak, reads, touches, wholes, sees, views, rest, restoring
    )


def drawn_at_once(steps: Sequence[Step]) -> list[Step]:
    """The steps, each random state restored right ahead of the op that draws from it: what moves
    beside the two goes before both."""
    found: list[Step] = []
    restored: dict[int, Step] = {}
    for step in steps:
        if isinstance(step.action, RestoreRandom):
            restored[step.action.op] = step
            continue
        if isinstance(step.action, Compute) and step.action.op in restored:
            found.append(restored.pop(step.action.op))
        found.append(step)
    return found
