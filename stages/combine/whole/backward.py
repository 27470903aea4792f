"""A training step whose parameters are updated in its backward, or after it, as actions.

A gradient that is handed over is used up by the update, which ends before anything else is
computed: so it is when an optimiser steps in the hooks of autograd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tightfit.schemas.actions import Compute, Free, FreeRandom, Gradient, Loss, Optimise, Write
from tightfit.schemas.contributions import contributions
from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.schedule import Step
from tightfit.schemas.updates import UpdateCost


def costs_by_value(graph: Graph, costs: Mapping[str, UpdateCost]) -> dict[int, UpdateCost]:
    """The costs of updates, which are by path, by the parameter that has a gradient."""
    owners = dict.fromkeys(gradient.value for gradient in graph.gradients)
    paths = {value: graph.values[value].path for value in owners}
    return {value: costs[path] for value, path in paths.items() if path in costs}


def in_backward(graph: Graph, steps: Sequence[Step], costs: Mapping[int, UpdateCost]) -> list[Step]:
    """A schedule with an `Optimise` for each parameter with a cost, as soon as its gradient is
    whole, in the order in which autograd takes gradients up."""
    found: list[Step] = []
    for position, arrived in _walk(graph, steps):
        found.append(steps[position])
        found += [Step(Optimise(value)) for value in arrived if value in costs]
    return found


def after_backward(steps: Sequence[Step], order: Sequence[int]) -> list[Step]:
    """A schedule with an `Optimise` for each parameter, in this order, after its backward."""
    return [*steps, *(Step(Optimise(value)) for value in order)]


def _walk(graph: Graph, steps: Sequence[Step]) -> Iterator[tuple[int, list[int]]]:
    """The positions of a schedule, each with the values whose gradients are whole after it, in the
    order in which autograd takes these up."""
    slices = _slices(graph, steps)
    left = Counter(owner for owners in slices.values() for owner in owners)
    final = max(slices, default=NONE)
    for position in range(len(steps)):
        whole = []
        for owner in slices.get(position, []):
            left[owner] -= 1
            whole += [] if left[owner] else [owner]
        yield position, _popped(whole, position == final)


def _slices(graph: Graph, steps: Sequence[Step]) -> dict[int, list[int]]:
    """What is handed over after a step: the values whose gradients or parts of them it is. A first
    part leaves with the second one; the gradient's own step says that all parts have left."""
    parts = contributions(graph)
    owners = {part: owner for owner, found in parts.items() for part in found}
    slices: dict[int, list[int]] = {}
    waiting: list[int] = []
    delivered: set[int] = set()
    for position, step in enumerate(steps):
        if isinstance(step.action, Gradient):
            owner = owners[step.action.value]
            both = dict.fromkeys((parts[owner][0], step.action.value))
            new = [part for part in both if part not in delivered]
            delivered.update(new)
            waiting += [owner] * (len(new) or owner not in waiting)
        following = steps[position + 1].action if position + 1 < len(steps) else None
        if waiting and (following is None or _runs(graph, following)):
            slices[position], waiting = waiting, []
    return slices


def _runs(graph: Graph, action: object) -> bool:
    """Whether an action hands over what is waiting: it runs an op that is no view."""
    if isinstance(action, Compute | Write | Loss):
        return not graph.is_view(graph.op(action.op))
    return not isinstance(action, Gradient | Free | FreeRandom)


def _popped(values: Sequence[int], last: bool) -> list[int]:
    """The order in which autograd takes up gradients that are handed over together.

    They go into a heap as the standard library of C++ has it, all as urgent as each other, behind
    what runs the rest of the backward, which is less urgent; the `last` ones alone.
    """
    heap: list[tuple[int, int]] = []
    for entry in [*([] if last else [(0, NONE)]), *((1, value) for value in values)]:
        heap.append(entry)
        _rise(heap, len(heap) - 1, entry)
    return [value for _, value in (_pop(heap) for _ in range(len(heap))) if value != NONE]


def _rise(heap: list[tuple[int, int]], hole: int, entry: tuple[int, int]) -> None:
    while hole and heap[(hole - 1) // 2][0] < entry[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = entry


def _pop(heap: list[tuple[int, int]]) -> tuple[int, int]:
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
    _rise(heap, hole, entry)
    return top
