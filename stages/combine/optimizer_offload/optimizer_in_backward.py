"""A training step whose parameters are updated in its backward, or after it, as actions.

A gradient that is handed over is used up by the update, which ends before anything else is
computed: so it is when an optimizer steps in the hooks of autograd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tightfit.schemas.actions import (
    Compute,
    ComputeLoss,
    Free,
    FreeRandomState,
    PassGradient,
    UpdateOnDevice,
    WriteBuffer,
)
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.machine import MachineDevice
from tightfit.schemas.optimizer_plan import ParameterUpdateCost
from tightfit.schemas.schedule import ScheduleStep


def costs_by_value(
    graph: Graph, costs: Mapping[str, ParameterUpdateCost]
) -> dict[int, ParameterUpdateCost]:
    """The costs of updates, which are by path, by the parameter that has a gradient."""
    owners = dict.fromkeys(gradient.value for gradient in graph.gradients)
    paths = {value: graph.values[value].path for value in owners}
    return {value: costs[path] for value, path in paths.items() if path in costs}


def add_updates_in_backward(
    graph: Graph, steps: Sequence[ScheduleStep], costs: Mapping[int, ParameterUpdateCost]
) -> list[ScheduleStep]:
    """A schedule with an `Optimize` for each parameter with a cost, as soon as its gradient is
    whole, in the order in which autograd takes gradients up."""
    found: list[ScheduleStep] = []
    for position, arrived in _steps_with_complete_gradients(graph, steps):
        found.append(steps[position])
        found += [ScheduleStep(UpdateOnDevice(value)) for value in arrived if value in costs]
    return found


def add_updates_after_backward(
    steps: Sequence[ScheduleStep], order: Sequence[int]
) -> list[ScheduleStep]:
    """A schedule with an `Optimize` for each parameter, in this order, after its backward."""
    return [*steps, *(ScheduleStep(UpdateOnDevice(value)) for value in order)]


def _steps_with_complete_gradients(
    graph: Graph, steps: Sequence[ScheduleStep]
) -> Iterator[tuple[int, list[int]]]:
    """The positions of a schedule, each with the values whose gradients are whole after it, in the
    order in which autograd takes these up."""
    slices = _backward_segments(graph, steps)
    left = Counter(owner for owners in slices.values() for owner in owners)
    final = max(slices, default=NO_VALUE)
    for position in range(len(steps)):
        whole = []
        for owner in slices.get(position, []):
            left[owner] -= 1
            whole += [] if left[owner] else [owner]
        yield position, _autograd_order(whole, position == final)


def _backward_segments(graph: Graph, steps: Sequence[ScheduleStep]) -> dict[int, list[int]]:
    """What is handed over after a step: the values whose gradients or parts of them it is. A first
    part leaves with the second one; the gradient's own step says that all parts have left."""
    parts = partial_gradients_by_owner(graph)
    owners = {part: owner for owner, found in parts.items() for part in found}
    slices: dict[int, list[int]] = {}
    waiting: list[int] = []
    delivered: set[int] = set()
    for position, step in enumerate(steps):
        if isinstance(step.action, PassGradient):
            owner = owners[step.action.value]
            both = dict.fromkeys((parts[owner][0], step.action.value))
            new = [part for part in both if part not in delivered]
            delivered.update(new)
            waiting += [owner] * (len(new) or owner not in waiting)
        following = steps[position + 1].action if position + 1 < len(steps) else None
        if waiting and (following is None or _ends_segment(graph, following)):
            slices[position], waiting = waiting, []
    return slices


def _ends_segment(graph: Graph, action: object) -> bool:
    """Whether an action hands over what is waiting: it runs an op that is no view."""
    if isinstance(action, Compute | WriteBuffer | ComputeLoss):
        return not graph.is_view(graph.op(action.op))
    return not isinstance(action, PassGradient | Free | FreeRandomState)


def _autograd_order(values: Sequence[int], last: bool) -> list[int]:
    """The order in which autograd takes up gradients that are handed over together.

    They go into a heap as the standard library of C++ has it, all as urgent as each other, behind
    what runs the rest of the backward, which is less urgent; the `last` ones alone.
    """
    heap: list[tuple[int, int]] = []
    for entry in [*([] if last else [(0, NO_VALUE)]), *((1, value) for value in values)]:
        heap.append(entry)
        _sift_up(heap, len(heap) - 1, entry)
    return [value for _, value in (_heap_pop(heap) for _ in range(len(heap))) if value != NO_VALUE]


def _sift_up(heap: list[tuple[int, int]], hole: int, entry: tuple[int, int]) -> None:
    while hole and heap[(hole - 1) // 2][0] < entry[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = entry


def _heap_pop(heap: list[tuple[int, int]]) -> tuple[int, int]:
    top, entry = heap[0], heap.pop()
    size, hole, child = len(heap), 0, 0
    if not size:
        return top
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole], hole = heap[child], child
    if size % 2 == 0 and child == (size - 2) // 2:
        heap[hole], hole = heap[2 * child + 1], 2 * child + 1
    _sift_up(heap, hole, entry)
    return top


OPTIMIZER_STATE_COUNTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""The optimizers of `torch.optim` that are known here, with the tensors that each keeps of a
parameter; "momentum" is SGD with momentum."""
SPEC_PIECE_BYTES = 16 << 20
"""Bytes of a parameter that are updated at a time: their states pass through one buffer."""


def count_optimizer_states(optimizer: str, settings: Mapping[str, Any]) -> int:
    """How many tensors of a parameter's size an optimizer with some settings keeps of each."""
    if optimizer == "sgd" and settings.get("momentum"):
        optimizer = "momentum"
    return OPTIMIZER_STATE_COUNTS[optimizer] + bool(settings.get("amsgrad"))


def update_costs_from_spec(
    graph: Graph,
    device: MachineDevice,
    away_bandwidth: float | None,
    optimizer: str,
    settings: Mapping[str, Any] | None = None,
) -> dict[int, ParameterUpdateCost]:
    """The cost of the update of each parameter that has a gradient.

    An update reads parameter, gradient and states and writes all but the gradient; it takes the
    time that these bytes take, of the device's memory or of the other one (`away_bandwidth`, None
    where nothing computes there), and two pieces of temporaries.
    """
    states, found = count_optimizer_states(optimizer, settings or {}), {}
    for value in dict.fromkeys(gradient.value for gradient in graph.gradients):
        if graph.values[value].kind != "parameter":
            continue
        size = graph.storages[graph.values[value].storage]
        parts = [
            min(SPEC_PIECE_BYTES, size - begin)
            for begin in range(0, max(size, 1), SPEC_PIECE_BYTES)
        ]
        traffic = size * (3 + 2 * states)
        assert device.bandwidth is not None
        found[value] = ParameterUpdateCost(
            path=graph.values[value].path,
            pieces=tuple(states * part for part in parts),
            seconds=traffic / device.bandwidth + device.latency * len(parts),
            peak=2 * max(parts),
            net=0,
            first=(2 * max(parts), 0),
            host_seconds=traffic / away_bandwidth if away_bandwidth else float("inf"),
            add_seconds=3 * size / away_bandwidth if away_bandwidth else float("inf"),
        )
    return found
