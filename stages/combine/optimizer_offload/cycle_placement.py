"""Places what moves parameters, gradients and states in steps that follow each other without a
seam.

The walk goes on from one step to the next, as that of one step does
(`stages.combine.optimizer_offload.transfer_placement`), until a step leaves what the one before has
left: from there on all steps can be the same. Gradients of parameters that are updated in the
offload target are used there in the order in which their parameters are needed anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise

import numpy as np

from tightfit.schemas.actions import Action, Free, Offload, PassGradient, UpdateOnHost
from tightfit.schemas.link import HostLink
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.optimizer_offload.activation_schedule import (
    ActivationSchedule,
    defer_random_restores,
)
from tightfit.stages.combine.optimizer_offload.residency import (
    PlacementMemoryError,
    PlacementRequest,
    PlacementTimeError,
    ResidencyWindow,
)
from tightfit.stages.combine.optimizer_offload.transfer_placement import StepTransferPlacer
from tightfit.stages.simulate.transfer_streams import (
    HostUpdateStream,
    StagingTimeline,
)

MAX_WALKED_STEPS = 7
"""Steps that are walked until one leaves what the one before has left."""
MAX_LOOKAHEAD = 256
"""Windows among which one that can come is looked for."""


@dataclass(frozen=True)
class CyclePlacement:
    """The schedule of a step of a cycle, the parameters (values) that are on the device at the
    seam, and the seconds of the last step that was walked."""

    steps: list[ScheduleStep]
    resident: frozenset[int]
    seconds: float


def cycle_windows(
    base: ActivationSchedule,
    remote: Mapping[int, int],
    here: Collection[int],
    trained: Collection[int],
    room: int,
    seconds_of: Mapping[int, float],
) -> list[ResidencyWindow]:
    """The windows of all parameters `remote` (by storage) in a step of a cycle, by first step; they
    end in the next step where `last` is beyond the end, and `first` is -1 for what never leaves.

    Parameters stay between two uses, the shortest gaps first, where the device has `room` for them
    in bytes, and where bringing them again (`seconds_of`) takes longer than the gap. Those that are
    updated elsewhere, `trained` and not `here`, do not stay over the seam.
    """
    graph, count = base.graph, len(base)
    clock = [0.0, *accumulate(base.seconds)]
    line = base.peak[:count].copy()
    uses: dict[int, list[int]] = {}
    gaps: list[tuple[float, int, int, int]] = []
    for storage, value in remote.items():
        own = {*base.reading_steps.get(storage, [])}
        own |= {base.gradient_steps[value]} if value in here else set()
        found = uses[storage] = sorted(own)
        for use in found:
            line[use] += graph.storages[storage]
        over = [(found[-1], found[0] + count)] if value in here or value not in trained else []
        for first, second in (*pairwise(found), *(over if found else [])):
            gap = clock[second % count] - clock[first] + (second >= count) * clock[count]
            gaps.append((gap, storage, first, second))
    kept: set[tuple[int, int]] = set()
    for gap, storage, first, second in sorted(gaps):
        size = graph.storages[storage]
        parts = [line[first + 1 : min(second, count)], line[: max(second - count, 0)]]
        short = gap <= 2 * seconds_of[storage] and second < count
        if short or all(not len(part) or int(part.max()) + size <= room for part in parts):
            for part in parts:
                part += size
            kept.add((storage, first))
    windows = [
        window
        for storage, own in uses.items()
        for window in _merge_cycle_windows(storage, own, kept, count)
    ]
    return sorted(windows, key=lambda window: (window.first, window.last))


def _merge_cycle_windows(
    storage: int, uses: list[int], kept: set[tuple[int, int]], count: int
) -> list[ResidencyWindow]:
    """The windows of a parameter, uses on both sides of a kept gap in one."""
    if all((storage, use) in kept for use in uses):
        return [ResidencyWindow(storage, -1, count)] if uses else []
    windows: list[ResidencyWindow] = []
    for use in uses:
        if windows and (storage, windows[-1].last) in kept:
            windows[-1] = ResidencyWindow(storage, windows[-1].first, use)
        else:
            windows.append(ResidencyWindow(storage, use, use))
    if (storage, uses[-1]) in kept:
        begun, ended = windows.pop(), windows.pop(0)
        windows.append(ResidencyWindow(storage, begun.first, ended.last + count))
    return windows


def place_cycle(
    base: ActivationSchedule, moved: PlacementRequest, link: HostLink, most: float = math.inf
) -> CyclePlacement:
    """The schedule of a step of a cycle with all that moves. Raises PlacementMemoryError where it
    does not fit or does not repeat, and PlacementTimeError where a step takes longer than `most`
    seconds."""
    return _CyclePlacer(base, moved, link, most).cycle()


@dataclass
class _CyclePlacer(StepTransferPlacer):
    """`arrived` are the parameters whose gradients are in the offload target and not used yet,
    `outdated` the storages of those whose update has not begun, and `handed` how often the gradient
    of each has been whole."""

    arrived: list[int] = field(default_factory=list)
    outdated: set[int] = field(default_factory=set)
    handed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name_values()
        updates, count = self.moved.updates, len(self.base)
        self.count = count
        self.horizon = (MAX_WALKED_STEPS + 1) * count
        self.line = np.tile(self.base.peak[:count], MAX_WALKED_STEPS + 1)
        self.permanent = {window.storage for window in self.moved.windows if window.first < 0}
        self.windows = [window for window in self.moved.windows if window.first >= 0]
        self.queue = deque[ResidencyWindow]()
        self.planned = self.line.copy()
        for storage in self.permanent:
            self.leaves(storage, self.horizon)
            self.line += self.sizes[storage]
            self.planned += self.sizes[storage]
            self.live_views[storage] = {self.value_of[storage]}
        order = sorted(self.base.gradient_steps, key=self.base.gradient_steps.__getitem__)
        here = [value for value in order if value in self.moved.here]
        passing = [updates.costs[value] for value in here if value not in updates.on_device]
        self.passing = [size for cost in passing for size in cost.pieces]
        self.staging = StagingTimeline.of(self.transfer, False, updates.buffers, self.passing)
        self.tier_bytes = updates.host_bytes(self.base.graph)
        name = f"{self.link.to}/compute"
        self.host = name
        self.beside = HostUpdateStream(name, updates, self.streams.free_at)

    def cycle(self) -> CyclePlacement:
        """Walks steps until they repeat."""
        self._queue_windows(0, first=True)
        before: object = None
        for number in range(MAX_WALKED_STEPS):
            begun, mark = self.clock, len(self.out)
            self._queue_windows(number + 1)
            for storage in self.live_views:
                self.live_views[storage] = {self.value_of[storage]}
            if number:
                self.staging.expected.extend(self.passing)
            self.staging.ahead()
            for index in range(self.count):
                if number and self.clock - begun + self.base.rest[index] > self.most:
                    raise PlacementTimeError
                self.walk(number * self.count + index, index)
            seconds, left = self.clock - begun, self._left()
            if number and seconds > self.most:
                raise PlacementTimeError
            if number > 1 and left == before:
                resident = frozenset(self.value_of[storage] for storage in self.leaves_at)
                return CyclePlacement(defer_random_restores(self.out[mark:]), resident, seconds)
            before = left
        raise PlacementMemoryError(self.count, self.moved.room)

    def _left(self) -> object:
        """What a step leaves to the next one."""
        return (
            frozenset(self.leaves_at),
            frozenset(self.moving),
            frozenset(self.outdated),
            frozenset(gradient for gradient, _ in self.sent),
            frozenset(gradient for gradient, _ in self.copies),
            frozenset(storage for storage, _ in self.back),
        )

    def _queue_windows(self, number: int, first: bool = False) -> None:
        """The windows of a step; ahead of the first one those that end in it."""
        begin = number * self.count
        found = [
            ResidencyWindow(window.storage, window.first + begin, window.last + begin)
            for window in self.windows
        ]
        if first:
            for window in self.windows:
                if window.last >= self.count:
                    use = self.base.reading_steps[window.storage][0]
                    found.append(ResidencyWindow(window.storage, use, window.last - self.count))
        for window in found:
            self.planned[window.first : window.last + 1] += self.sizes[window.storage]
        self.queue.extend(sorted(found, key=lambda window: (window.first, window.last)))

    def settle(self, least: int = 0, at_end: bool = False) -> int:
        freed = super().settle(least)
        self._update_next()
        return freed

    def finish_gradient_offload(self, gradient: int) -> int:
        storage, owner = self.storage(gradient), self.owner_of[gradient]
        self.wait(gradient, storage)
        self.act(Free(gradient))
        self.arrived.append(owner)
        self.waiting -= self.sizes[storage]
        return self.sizes[storage]

    def _update_next(self) -> None:
        """Updates in the offload target begin when nothing else is done there."""
        while self.arrived and self.beside.free_at.get(self.host, 0.0) <= (
            self.clock + self.moved.slack
        ):
            self._update_on_host(min(self.arrived, key=self._next_use))

    def _next_use(self, owner: int) -> tuple[int, int]:
        """When a parameter is used anew: the step and the position in it."""
        own = self.storage(owner)
        uses = self.base.reading_steps.get(own) or [self.count]
        return self.handed[own], uses[0]

    def _update_on_host(self, owner: int) -> None:
        self.arrived.remove(owner)
        gradient = self.parts[owner][0]
        self.act(UpdateOnHost(owner))
        end = self.beside.run(owner, self.clock)[1]
        self.moving[self.storage(gradient)] = end
        self.copies.append((gradient, end))
        own = self.storage(owner)
        self.ready[own] = end
        self.outdated.discard(own)

    def _renew(self, storage: int) -> None:
        """The update of a parameter begins, whatever it has to wait for."""
        owner = self.value_of[storage]
        while storage in self.outdated and owner not in self.arrived:
            self.finish_gradient_offload(self.sent.popleft()[0])
        if storage in self.outdated:
            self._update_on_host(owner)

    def fetch(self, position: int) -> None:
        stream = self.link.stream(False)
        while self.queue and self.streams.free(stream) <= self.clock + self.moved.slack:
            window = self._next_window(position)
            if window is None:
                return
            self.queue.remove(window)
            self.bring(position, window)

    def _next_window(self, position: int) -> ResidencyWindow | None:
        """What comes next: the first that has all updates, if it fits. One that is not the first
        leaves room for those ahead of it."""
        while self.queue and self.queue[0].storage in self.leaves_at:
            if not self._is_handed(self.queue[0]) or not self._stay(self.queue[0]):
                return None
        for number, window in enumerate(islice(self.queue, MAX_LOOKAHEAD)):
            if window.storage in self.leaves_at or not self._is_new(window):
                continue
            alone = self.planned[position : window.first]
            most = int(alone.max()) if number and len(alone) else 0
            most += self.sizes[window.storage] + self.waiting + self.moved.margin
            if most <= self.moved.room and self.fits(position, window):
                return window
            return None
        return None

    def bring(self, position: int, window: ResidencyWindow) -> None:
        self.planned[position : window.first] += self.sizes[window.storage]
        super().bring(position, window)

    def _is_new(self, window: ResidencyWindow) -> bool:
        """Whether a parameter has all updates of the steps before that of its window."""
        storage = window.storage
        return (
            self._is_handed(window)
            and storage not in self.outdated
            and self.ready.get(storage, 0.0) <= self.clock
        )

    def _is_handed(self, window: ResidencyWindow) -> bool:
        trained = self.value_of[window.storage] in self.moved.updates.costs
        return not trained or self.handed.get(window.storage, 0) >= window.first // self.count

    def _stay(self, window: ResidencyWindow) -> bool:
        """A parameter that is on its way back, and needed anew, stays; whether it does."""
        sent = [each for each in self.back if each[0] == window.storage]
        if not sent:
            return False
        self.back.remove(sent[0])
        self.queue.popleft()
        self.line[window.last + 1 :] -= self.sizes[window.storage]
        self.leaves(window.storage, window.last)
        return True

    def fits(self, position: int, window: ResidencyWindow) -> bool:
        over = window.last // self.count > window.first // self.count
        backward = over or window.last % self.count >= self.backward
        most = int(self.line[position : window.last + 1].max())
        most += max(self.waiting, self.moved.margin if backward else 0)
        return most + self.sizes[window.storage] <= self.moved.room

    def need(self, position: int, storage: int) -> None:
        while self.queue and self.queue[0].first <= position:
            window = self.queue[0]
            if window.storage in self.leaves_at:
                if not self._stay(window):
                    raise PlacementMemoryError(position, self.moved.room)
                continue
            self._renew(window.storage)
            size = self.sizes[window.storage]
            lacking = int(self.line[position]) + self.waiting + size - self.moved.room
            if lacking > 0 and self.settle(lacking) < lacking:
                raise PlacementMemoryError(position, self.moved.room + lacking)
            self.bring(position, self.queue.popleft())
        if storage in self.moving:
            self.wait(self.value_of[storage], storage)

    def after(self, position: int, action: Action) -> None:
        if isinstance(action, PassGradient) and action.value in self.owner_of:
            owner = self.owner_of[action.value]
            own = self.storage(owner)
            self.waiting += self.sizes[self.storage(action.value)]
            self.handed[own] = self.handed.get(own, 0) + 1
            if owner in self.moved.here:
                self.update(owner)
            elif own in self.value_of:
                self._use_up_copy(action.value)
                self.outdated.add(own)
                self.sent.append((action.value, self.send(action.value)))
        for storage in self.ends.pop(position, ()):
            if self.leaves_at.get(storage) != position:
                continue
            if storage in self.moving:
                self.wait(self.value_of[storage], storage)
            self.drop(storage, position + 1)

    def _use_up_copy(self, gradient: int) -> None:
        """The copy of a gradient of the step before is used and freed."""
        while any(copy == gradient for copy, _ in self.copies):
            self.free_oldest_copy()

    def send(self, value: int) -> float:
        while self.tier_bytes + self.sizes[self.storage(value)] > self.link.room and self.arrived:
            self._update_on_host(self.arrived[0])
            self.free_oldest_copy()
        return super().send(value)

    def update(self, owner: int) -> None:
        self.update_on_device(owner)
        storage = self.storage(owner)
        if storage not in self.leaves_at or storage in self.permanent:
            return
        self.act(Offload(owner))
        self.moving[storage] = end = self.transfer(self.sizes[storage], True, 0.0)[1]
        last = self.leaves_at[storage]
        if last <= self.position:
            self.line[last + 1 :] += self.sizes[storage]
            self.leaves(storage, self.horizon)
            self.back.append((storage, end))
