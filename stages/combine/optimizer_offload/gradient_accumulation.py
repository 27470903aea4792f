"""What a step takes where gradients of several microbatches add up on the device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.actions import UpdateOnDevice
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.simulate import device_memory_name, simulate


@dataclass(frozen=True)
class AccumulationPeaks:
    """The bytes of all `gradients`, and peaks of microbatches above what is there before each,
    these among it: of the `opening` one, which finds none, of one that is `adding` to them, and of
    the `last` one, which updates (`first` where that makes the states); and what updates behind all
    of them take `at_once`, with the outputs that the caller still has. Remote parameters that are
    there are part of the peaks."""

    gradients: int
    opening: int
    adding: int
    last: int
    first: int
    at_once: int

    @property
    def most(self) -> int:
        """The most bytes above what is there before the opening one."""
        later = max(self.adding, self.last, self.first, self.at_once)
        return max(self.opening, self.gradients + later)


def accumulation_peaks(
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep],
    link: HostLink | None,
    updates: OptimizerPlan,
) -> AccumulationPeaks:
    """What microbatches take of which the last one is a schedule, with its updates on the
    device."""
    begun = replace(updates, first=True)
    alone = simulate(graph, costs, steps, link=link, updates=updates)
    again = simulate(graph, costs, steps, accumulate=True, link=link, updates=updates)
    first = simulate(graph, costs, steps, accumulate=True, link=link, updates=begun)
    there = _bytes(graph, updates.resident)
    coming = updates.offloaded - updates.resident
    updating = [
        max(cost.peak, cost.first[0]) + _bytes(graph, {value} & coming)
        for value, cost in updates.costs.items()
    ]
    made = sum(cost.first[1] for cost in updates.costs.values())
    gradients = gradient_bytes(graph, updates.costs)
    opening, behind = _without_updates(graph, alone.steps, there)
    adding, _ = _without_updates(graph, again.steps, there)
    return AccumulationPeaks(
        gradients=gradients,
        opening=opening,
        adding=adding,
        last=again.peak,
        first=first.peak,
        at_once=behind - gradients + made + max(updating, default=0),
    )


def peak_with_gradients(graph: Graph, steps: Sequence[ScheduleStep], updates: OptimizerPlan) -> int:
    """The peak of a schedule that was played with its updates after the backward, where gradients
    stay behind these, until the loop drops them."""
    own = device_memory_name(graph)
    most = live = kept = 0
    for step in steps:
        if step.memory != own:
            continue
        most = max(most, step.peak + kept)
        if isinstance(step.action, UpdateOnDevice):
            cost = updates.costs[step.action.value]
            net = cost.first[1] if updates.first else cost.net
            kept += live + net - step.live
        live = step.live
    return most


def gradient_bytes(graph: Graph, owners: Collection[int]) -> int:
    """The bytes of the gradients of some parameters, each storage once."""
    return _bytes(
        graph, [parts[0] for o, parts in partial_gradients_by_owner(graph).items() if o in owners]
    )


def _without_updates(graph: Graph, steps: Sequence[ScheduleStep], there: int) -> tuple[int, int]:
    """The peak of steps that were played with updates, where none is done and gradients stay, and
    the bytes at their end."""
    own = device_memory_name(graph)
    most, live, more = there, there, 0
    for step in steps:
        if step.memory != own:
            continue
        if isinstance(step.action, UpdateOnDevice):
            more += live - step.live
        else:
            most = max(most, step.peak + more)
        live = step.live
    return most, live + more


def _bytes(graph: Graph, values: Collection[int]) -> int:
    """The bytes of the storages of values."""
    return sum(graph.storages[s] for s in {graph.values[value].storage for value in values})
