"""A cycle as a reader plays it: loops over many steps with clocks and bytes of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from tightfit.schemas.actions import (
    Free,
    FreeHostCopy,
    Offload,
    Prefetch,
    UpdateOnDevice,
    UpdateOnHost,
    Wait,
)
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.ownership import caller_owned_storages
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.effects import Effect, schedule_effects


class CycleReader:
    """Plays steps one after the other. `carried` are the positions that the first step leaves out,
    and that close the last one; `seconds_of` what the ops at positions take."""

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        steps: Sequence[ScheduleStep],
        carried: frozenset[int],
        link: HostLink,
        updates: OptimizerPlan,
    ) -> None:
        self.graph, self.costs, self.link, self.updates = graph, costs, link, updates
        self.effects = list(schedule_effects(graph, steps))
        self.carried = carried
        self.now = self.out = self.back = self.host = 0.0
        self.ends: dict[int, float] = {}
        self.new: dict[int, float] = {}
        storages = [value.storage for value in graph.values]
        self.bytes = {
            storages[value]: graph.storages[storages[value]] for value in updates.resident
        }
        self.copies: dict[int, int] = {}
        self.most_copies = 0
        self.buffers = deque([0.0] * updates.buffers)
        order = [s.action.value for s in steps if isinstance(s.action, UpdateOnDevice)]
        self.states = [
            size
            for value in order
            if value not in updates.on_device
            for size in updates.costs[value].pieces
        ]
        self.expected: deque[int] = deque()
        self.arriving: deque[float] = deque()
        self.caller_owned = caller_owned_storages(graph)

    def step(self, which: str) -> tuple[float, int]:
        """Seconds of the compute stream and the peak of a "first" step, a "next" one or of the
        "close"."""
        begun, most = self.now, sum(self.bytes.values())
        if which != "close":
            self.expected.extend(self.states)
            self._fetch_states()
        for effect in self._chosen(which):
            most = max(most, self._play(effect), sum(self.bytes.values()))
        for storage in self.caller_owned & self.bytes.keys():
            del self.bytes[storage]
        return self.now - begun, most

    def _chosen(self, which: str) -> Iterator[Effect]:
        for effect in self.effects:
            of_before = effect.position in self.carried
            if which == "next" or of_before == (which == "close"):
                yield effect

    def _move(self, size: int, leaves: bool, after: float = 0.0) -> float:
        """The end of a transfer."""
        self.now += self.link.overhead + size * self.link.overhead_per_byte
        start = max(self.now, after, self.out if leaves else self.back)
        if self.link.shared:
            start = max(start, self.out, self.back)
        end = start + self.link.latency + size / self.link.bandwidth
        if leaves:
            self.out = end
        else:
            self.back = end
        return end

    def _fetch_states(self) -> None:
        while self.expected and len(self.buffers) > 1:
            self._fetch_one()

    def _fetch_one(self) -> None:
        size, free = self.expected.popleft(), self.buffers.popleft()
        self.arriving.append(self._move(size, False, free) if size else free)

    def _play(self, effect: Effect) -> int:
        """Plays an action; returns the bytes within it."""
        graph, sizes = self.graph, self.graph.storages
        action, before = effect.step.action, sum(self.bytes.values())
        if effect.runs and effect.op is not None:
            cost = self.costs.of(graph, effect.op, getattr(action, "in_place", -1))
            self.now += cost.seconds
            for storage in effect.drops:
                del self.bytes[storage]
            for value in effect.makes:
                storage = graph.values[value].storage
                self.bytes[storage] = sizes[storage]
            return before + cost.peak
        storage = graph.values[action.value].storage if hasattr(action, "value") else -1
        match action:
            case Offload(value):
                if value not in self.updates.offloaded:
                    self.copies[storage] = sizes[storage]
                    self.most_copies = max(self.most_copies, sum(self.copies.values()))
                self.ends[storage] = self._move(sizes[storage], True)
            case Prefetch():
                self.bytes[storage] = sizes[storage]
                self.ends[storage] = self._move(sizes[storage], False, self.new.get(storage, 0.0))
            case Wait():
                self.now = max(self.now, self.ends.pop(storage))
            case Free():
                del self.bytes[storage]
            case FreeHostCopy():
                del self.copies[storage]
            case UpdateOnHost(value):
                start = max(self.now, self.host)
                self.host = start + self.updates.costs[value].host_seconds
                self.ends[effect.moves] = self.new[storage] = self.host
            case UpdateOnDevice(value):
                self._update(value)
                for gone in effect.drops:
                    del self.bytes[gone]
                return before + self.updates.costs[value].peak
        return before

    def _update(self, value: int) -> None:
        cost = self.updates.costs[value]
        whole = sum(cost.pieces)
        for size in cost.pieces:
            share = cost.seconds * (size / whole if whole else 1 / len(cost.pieces))
            if value in self.updates.on_device:
                self.now += share
                continue
            if not self.arriving:
                self._fetch_one()
            self.now = max(self.now, self.arriving.popleft()) + share
            self.buffers.append(self._move(size, True) if size else 0.0)
            self._fetch_states()
