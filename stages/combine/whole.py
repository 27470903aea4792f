"""A training step whose parameters are updated in its backward: its bytes and its time.

By the law of lanes the bytes follow from the order of issue: a gradient that is handed over is used
up by the update, which ends before anything else is computed. Clocks only say how long lanes wait.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.actions import Compute, FreeCopy, Gradient, Loss, Offload, Write
from schemas.contributions import contributions
from schemas.graph import NONE, Graph
from schemas.schedule import Step
from schemas.updates import LinkSpeed, UpdateCost


@dataclass(frozen=True)
class Line:
    """The most bytes of a step above those from before it, and the paths of parameters in the
    order of their updates, by the step of the schedule that each follows."""

    peak: int
    updates: list[tuple[int, str]]


def whole_line(
    graph: Graph, steps: Sequence[Step], costs: Mapping[str, UpdateCost], first: bool
) -> Line:
    """The memory of a schedule in which each parameter with a cost is updated when its gradient is
    whole; `first` says that there are no states yet."""
    storage = {g.value: graph.values[g.gradient].storage for g in graph.gradients}
    holders = Counter(storage.values())
    gone = used = peak = live = 0
    order: list[tuple[int, str]] = []
    for position, arrived in _walk(graph, steps):
        step = steps[position]
        if not isinstance(step.action, Offload | FreeCopy):
            live = step.live
            peak = max(peak, step.peak - gone + used)
        for value in arrived:
            cost = costs.get(graph.values[value].path)
            if cost is None:
                continue
            order.append((position, cost.path))
            own, net = cost.first if first else (cost.peak, cost.net)
            peak = max(peak, live - gone + used + own)
            used += net
            holders[storage[value]] -= 1
            if not holders[storage[value]]:
                gone += graph.storages[storage[value]]
    return Line(peak, order)


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
        return not graph.is_view(graph.ops[action.op])
    return not isinstance(action, Gradient) and type(action).__name__ not in ("Free", "FreeRandom")


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


@dataclass
class Clocks:
    """The lanes of a step: when each is through, and how long computations waited; and when each of
    the `count` staging buffers is free."""

    speed: LinkSpeed
    count: int
    now: float = 0.0
    waited: float = 0.0
    to: float = 0.0
    back: float = 0.0
    coming: deque[tuple[int, float]] = field(default_factory=deque)
    free: deque[float] = field(default_factory=deque)
    stored: dict[int, float] = field(default_factory=dict)
    expected: deque[int] = field(default_factory=deque)

    def wait(self, moment: float) -> None:
        """Computations stand still until a moment."""
        self.waited += max(moment - self.now, 0.0)
        self.now = max(moment, self.now)

    def ahead(self, sizes: Sequence[int]) -> None:
        """Fetches what is expected, as far as there are buffers."""
        while self.expected and len(self.free) > 1:
            piece, buffer = self.expected.popleft(), self.free.popleft()
            start = max(self.now, self.back, buffer, self.stored.get(piece, 0.0))
            self.back = start + self.speed.seconds(sizes[piece], leaves=False)
            self.coming.append((piece, self.back))

    def update(self, piece: int, size: int, seconds: float, sizes: Sequence[int]) -> None:
        """Updates a piece and sends its states back."""
        if self.coming and self.coming[0][0] == piece:
            self.wait(self.coming.popleft()[1])
        else:
            self.wait(self.free.popleft())
        self.now += seconds
        self.to = max(self.now, self.to) + self.speed.seconds(size, leaves=True)
        self.stored[piece] = self.to
        self.free.append(self.to)
        self.ahead(sizes)


def whole_seconds(
    steps: Sequence[Step], line: Line, costs: Mapping[str, UpdateCost], speed: LinkSpeed, count: int
) -> tuple[float, float]:
    """The seconds of a step after the first one, and those of it that computations waited; `count`
    staging buffers take turns."""
    pieces = [(position, cost, size) for position, cost, size in _pieces(line, costs)]
    sizes = [size for _, _, size in pieces]
    after: dict[int, list[int]] = {}
    for number, (position, _, _) in enumerate(pieces):
        after.setdefault(position, []).append(number)
    clocks = Clocks(speed, count)
    clocks.free.extend([0.0] * count)
    begun = waited = 0.0
    for _ in range(3):
        begun, waited = clocks.now, clocks.waited
        clocks.expected.extend(range(len(pieces)))
        clocks.ahead(sizes)
        end = 0.0
        for position, step in enumerate(steps):
            own = step.lane.endswith("/compute") or not step.lane
            if own:
                clocks.now += max(step.end - end, 0.0)
                end = max(step.end, end)
            for number in after.get(position, []):
                _, seconds, size = pieces[number]
                clocks.update(number, size, seconds, sizes)
    return clocks.now - begun, clocks.waited - waited


def _pieces(line: Line, costs: Mapping[str, UpdateCost]) -> Iterator[tuple[int, float, int]]:
    """All pieces in order: the step that each follows, its seconds and its bytes."""
    for position, path in line.updates:
        cost = costs[path]
        whole = sum(cost.pieces)
        for size in cost.pieces:
            share = size / whole if whole else 1 / len(cost.pieces)
            yield position, cost.seconds * share, size
