"""Places what moves parameters, gradients and states in a schedule, by the clocks of the streams.

One walk along the schedule decides online: parameters come in the order of their use, as early as
there is room until their use ends, and are freed after it; a gradient that is whole is sent, or
used up on the device; what has been sent is freed where its transfer has ended, or earlier, with a
wait, where its bytes are needed. The simulator plays what comes out.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tightfit.schemas.actions import (
    AccumulateOnHost,
    Action,
    Compute,
    Free,
    FreeHostCopy,
    Offload,
    PassGradient,
    Prefetch,
    UpdateOnDevice,
    UpdateOnHost,
    Wait,
)
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import Op
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
from tightfit.stages.simulate.transfer_streams import (
    HostUpdateStream,
    StagingTimeline,
    TransferStreams,
)

CLOCK_TOLERANCE = 1 + 1e-9
"""The clocks of a walk are those of the simulator but for the rounding of sums."""


def place_transfers(
    base: ActivationSchedule, moved: PlacementRequest, link: HostLink, most: float = math.inf
) -> list[ScheduleStep]:
    """The schedule with all that moves. Raises TooLittleError where it does not fit, and
    TooSlowError where it takes longer than `most` seconds, as soon as that is known."""
    # A walk restores random states ahead of transfers that the simulator plays first.
    return defer_random_restores(
        StepTransferPlacer(base, moved, link, most * CLOCK_TOLERANCE + base.restoring).steps()
    )


@dataclass
class StepTransferPlacer:
    """One walk along the schedule of a `base`. `position` is the step that is next, `index` the
    same in the base."""

    base: ActivationSchedule
    moved: PlacementRequest
    link: HostLink
    most: float
    out: list[ScheduleStep] = field(default_factory=list)
    clock: float = 0.0
    moving: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    leaves_at: dict[int, int] = field(default_factory=dict)
    ends: dict[int, list[int]] = field(default_factory=dict)
    waiting: int = 0
    position: int = 0
    index: int = 0
    sent: deque[tuple[int, float]] = field(default_factory=deque)
    back: deque[tuple[int, float]] = field(default_factory=deque)
    copies: deque[tuple[int, float]] = field(default_factory=deque)
    late: deque[int] = field(default_factory=deque)
    live_views: dict[int, set[int]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.name_values()
        graph, updates = self.base.graph, self.moved.updates
        self.queue = deque(window for window in self.moved.windows if window.first >= 0)
        self.coming = np.zeros(len(self.base) + 1, np.int64)
        for window in self.queue:
            self.coming[window.first : window.last + 1] += self.sizes[window.storage]
        self.line = self.base.peak.copy()
        for window in self.moved.windows:
            if window.first < 0:
                self.leaves(window.storage, window.last)
                self.line[: window.last + 1] += self.sizes[window.storage]
                self.live_views[window.storage] = {self.value_of[window.storage]}
        order = sorted(self.base.gradient_steps, key=self.base.gradient_steps.__getitem__)
        here = [value for value in order if value in self.moved.here]
        passing = [updates.costs[value] for value in here if value not in updates.on_device]
        sizes = [size for cost in passing for size in cost.pieces]
        self.staging = StagingTimeline.of(self.transfer, updates.first, updates.buffers, sizes)
        away = [
            value for value in order if value not in self.moved.here and not updates.accumulates
        ]
        stream = f"{self.link.to}/compute"
        self.tier_bytes = updates.host_bytes(graph)
        self.beside = HostUpdateStream.of(stream, updates, away, self.streams.free_at)

    def name_values(self) -> None:
        """What of the graph is what, and the streams."""
        graph, updates = self.base.graph, self.moved.updates
        self.streams = TransferStreams(self.link)
        self.sizes = graph.storages
        self.value_of = {graph.values[value].storage: value for value in updates.offloaded}
        self.there = {graph.values[value].storage for value in updates.resident}
        self.parts = partial_gradients_by_owner(graph)
        self.owner_of = {parts[0]: owner for owner, parts in self.parts.items()}
        self.maker = graph.makers()
        self.backward = min(self.base.gradient_steps.values(), default=len(self.base))

    def steps(self) -> list[ScheduleStep]:
        """The schedule with all that moves."""
        self.staging.ahead()
        for position in range(len(self.base)):
            if self.clock + self.base.rest[position] > self.most:
                raise PlacementTimeError
            self.walk(position, position)
        self.position = len(self.base)
        self.end()
        if self.streams.through(self.clock) > self.most:
            raise PlacementTimeError
        return self.out

    def walk(self, position: int, index: int) -> None:
        """What moves ahead of a step, the step, and what moves after it."""
        self.position, self.index, action = position, index, self.base.steps[index].action
        self.settle()
        self.fetch(position)
        for storage in (*self.base.reads[index], *self._device_updated_storages(action)):
            self.need(position, storage)
        for value in self.base.value_reads[index]:
            self.make_view(value)
        self.make_room(position)
        self.play(action)
        self.after(position, action)

    def _device_updated_storages(self, action: Action) -> list[int]:
        """The parameter that is updated on the device after an action."""
        owner = self.owner_of.get(action.value) if isinstance(action, PassGradient) else None
        if owner is None or owner not in self.moved.here:
            return []
        storage = self.storage(owner)
        return [storage] if storage in self.value_of else []

    def transfer(self, size: int, leaves: bool, after: float) -> tuple[float, float]:
        """A transfer that goes into its stream, as the simulator plays it."""
        speed = self.moved.updates.speed
        self.clock += speed.overhead_of(size)
        seconds = speed.seconds(size, leaves)
        return self.streams.begin(leaves, max(self.clock, after), seconds)

    def act(self, action: Action) -> None:
        """The next action, and the bytes of the offload target after it."""
        self.out.append(ScheduleStep(action))
        if isinstance(action, Offload | FreeHostCopy):
            storage = self.storage(action.value)
            if storage not in self.value_of:
                sign = 1 if isinstance(action, Offload) else -1
                self.tier_bytes += sign * self.sizes[storage]

    def send(self, value: int) -> float:
        """A value leaves once the offload target has room for its copy; when it is there."""
        size = self.sizes[self.storage(value)]
        while self.tier_bytes + size > self.link.room:
            if self.copies:
                self.free_oldest_copy()
            elif self.sent:
                self.finish_gradient_offload(self.sent.popleft()[0])
            else:
                raise PlacementMemoryError(self.position, self.tier_bytes + size, away=True)
        self.act(Offload(value))
        self.moving[self.storage(value)] = end = self.transfer(size, True, 0.0)[1]
        return end

    def free_oldest_copy(self) -> None:
        """The copy of a gradient is no longer needed."""
        gradient = self.copies.popleft()[0]
        self.wait(gradient, self.storage(gradient))
        self.act(FreeHostCopy(gradient))

    def wait(self, value: int, storage: int) -> None:
        """Computing goes on when a transfer, or an update that reads a copy, has ended."""
        self.act(Wait(value))
        self.clock = max(self.clock, self.moving.pop(storage))

    def settle(self, least: int = 0, at_end: bool = False) -> int:
        """Frees what has been sent and has ended by now, or enough of it for `least` bytes; returns
        the bytes."""
        freed = 0
        while self.sent and (at_end or self.sent[0][1] <= self.clock or freed < least):
            freed += self.finish_gradient_offload(self.sent.popleft()[0])
        while self.back and (at_end or self.back[0][1] <= self.clock or freed < least):
            storage = self.back.popleft()[0]
            self.wait(self.value_of[storage], storage)
            freed += self.sizes[storage]
            self.drop(storage, self.position)
        while self.copies and (at_end or self.copies[0][1] <= self.clock):
            self.free_oldest_copy()
        return freed

    def finish_gradient_offload(self, gradient: int) -> int:
        """A gradient leaves the device, and its parameter is updated where it is; the bytes."""
        storage, owner = self.storage(gradient), self.owner_of[gradient]
        self.wait(gradient, storage)
        self.act(Free(gradient))
        updates = self.moved.updates
        self.act(AccumulateOnHost(owner) if updates.accumulates else UpdateOnHost(owner))
        size = self.sizes[storage]
        self.waiting -= size
        end = self.beside.run(owner, self.clock)[1]
        self.moving[storage] = end
        self.copies.append((gradient, end))
        if updates.accumulates:
            return size
        own = self.storage(owner)
        self.ready[own] = end
        if own in self.there:
            self.late.append(own)
        return size

    def storage(self, value: int) -> int:
        """The storage of a value."""
        return self.base.graph.values[value].storage

    def fetch(self, position: int) -> None:
        """Brings what is used next, as long as there is room and the stream is not busy for
        long."""
        stream = self.link.stream(False)
        while self.queue and self.streams.free(stream) <= self.clock + self.moved.slack:
            window = self.queue[0]
            if window.storage in self.leaves_at or not self.fits(position, window):
                return
            self.bring(position, self.come())
        while self.late and self.streams.free(stream) <= self.clock:
            storage = self.late[0]
            window = ResidencyWindow(storage, position, len(self.base))
            on_device = storage in self.leaves_at
            if on_device or self.ready[storage] > self.clock or not self.stays(position, storage):
                return
            self.bring(position, window)
            self.late.popleft()

    def come(self) -> ResidencyWindow:
        """The next window, of which the parameter comes now."""
        window = self.queue.popleft()
        self.coming[window.first : window.last + 1] -= self.sizes[window.storage]
        return window

    def fits(self, position: int, window: ResidencyWindow) -> bool:
        """Whether a parameter can be on the device from here to the end of its window, beside the
        gradients that wait here."""
        most = int(self.line[position : window.last + 1].max())
        most += max(self.waiting, self.moved.margin if window.last >= self.backward else 0)
        return most + self.sizes[window.storage] <= self.moved.room

    def stays(self, position: int, storage: int) -> bool:
        """Whether a parameter can be on the device from here to the end of the step, beside those
        that are still to come for what reads them, and the next of these."""
        most = int((self.line[position:] + self.coming[position:]).max())
        most += max(self.waiting, self.moved.margin) + max(self.moved.margin, 0)
        return most + self.sizes[storage] <= self.moved.room

    def bring(self, position: int, window: ResidencyWindow) -> None:
        """A parameter's bytes are taken, and it is on its way."""
        storage, size = window.storage, self.sizes[window.storage]
        self.act(Prefetch(self.value_of[storage]))
        end = self.transfer(size, False, self.ready.get(storage, 0.0))[1]
        self.moving[storage] = end
        self.leaves(storage, window.last)
        self.line[position : window.last + 1] += size
        self.live_views[storage] = {self.value_of[storage]}

    def need(self, position: int, storage: int) -> None:
        """What a step reads is on the device."""
        while storage not in self.leaves_at:
            window = self.come()
            size = self.sizes[window.storage]
            lacking = int(self.line[position]) + self.waiting + size - self.moved.room
            if lacking > 0 and self.settle(lacking) < lacking:
                raise PlacementMemoryError(position, self.moved.room + lacking)
            self.bring(position, window)
        if storage in self.moving:
            self.wait(self.value_of[storage], storage)

    def make_room(self, position: int) -> None:
        """The step's bytes are there; what has been sent is waited for where they are not."""
        lacking = int(self.line[position]) + self.waiting - self.moved.room
        if lacking > 0 and self.settle(lacking) < lacking:
            raise PlacementMemoryError(position, self.moved.room + lacking)

    def make_view(self, value: int) -> None:
        """Views of a parameter that came anew are made anew."""
        storage = self.storage(value)
        known = self.live_views.get(storage)
        if known is None or value in known:
            return
        op: Op = self.maker[value]
        for source in op.inputs:
            self.make_view(source)
        self.act(Compute(op.id))
        known.add(value)

    def play(self, action: Action) -> None:
        """The step of the schedule itself."""
        values = self.base.graph.values
        match action:
            case Offload(value):
                self.send(value)
                return
            case Prefetch(value):
                storage = values[value].storage
                self.moving[storage] = self.transfer(self.sizes[storage], False, 0.0)[1]
            case Wait(value):
                self.clock = max(self.clock, self.moving.pop(values[value].storage))
        views = [
            (value, self.live_views[storage])
            for value in self.base.views[self.index]
            if (storage := values[value].storage) in self.live_views
        ]
        if any(value in known for value, known in views):
            return
        for value, known in views:
            known.add(value)
        self.act(action)
        self.clock += self.base.seconds[self.index]

    def after(self, position: int, action: Action) -> None:
        """Updates by a gradient that is whole, and the end of windows."""
        if isinstance(action, PassGradient) and action.value in self.owner_of:
            owner = self.owner_of[action.value]
            self.waiting += self.sizes[self.storage(action.value)]
            if owner in self.moved.here:
                self.update(owner)
            elif self.storage(owner) in self.value_of:
                self.sent.append((action.value, self.send(action.value)))
        for storage in self.ends.pop(position, ()):
            if self.leaves_at.get(storage) == position and storage not in self.moving:
                self.drop(storage, position + 1)

    def update(self, owner: int) -> None:
        """An update on the device; a parameter that does not stay is sent back."""
        self.update_on_device(owner)
        storage = self.storage(owner)
        if storage not in self.leaves_at:
            return
        stays = self.leaves_at[storage] == len(self.base)
        if stays and storage not in self.dropped:
            return
        self.act(Offload(owner))
        end = self.transfer(self.sizes[storage], True, 0.0)[1]
        self.moving[storage] = end
        if not stays:
            self.line[self.leaves_at[storage] + 1 :] += self.sizes[storage]
            self.leaves(storage, len(self.base))
            self.back.append((storage, end))

    def update_on_device(self, owner: int) -> None:
        """An update on the device, whose states pass through staging buffers."""
        cost, updates = self.moved.updates.costs[owner], self.moved.updates
        self.act(UpdateOnDevice(owner))
        for seconds, size in cost.parts():
            if owner in updates.on_device:
                self.clock += seconds
                continue
            arrives = self.staging.arrives()
            self.clock = max(self.clock, arrives) + seconds
            self.staging.leaves(size)
        self.waiting -= self.sizes[self.storage(self.parts[owner][0])]

    def leaves(self, storage: int, last: int) -> None:
        """A parameter is on the device up to a step."""
        self.leaves_at[storage] = last
        self.ends.setdefault(last, []).append(storage)

    def drop(self, storage: int, begin: int) -> None:
        """A parameter leaves the device ahead of a step."""
        self.act(Free(self.value_of[storage]))
        self.dropped.add(storage)
        last = self.leaves_at.pop(storage)
        self.live_views.pop(storage)
        self.line[begin : last + 1] -= self.sizes[storage]

    def end(self) -> None:
        """All that was sent is through, and what has to be there is brought."""
        end = len(self.base)
        self.settle()
        while self.sent or self.back:
            self.settle(1)
        self.queue.extend(ResidencyWindow(storage, end, end) for storage in self.late)
        while self.queue:
            self.bring(end, self.queue.popleft())
            if int(self.line[end]) > self.moved.room:
                raise PlacementMemoryError(end, int(self.line[end]))
        self.settle(at_end=True)
        for storage in sorted(set(self.moving) & set(self.leaves_at)):
            self.wait(self.value_of[storage], storage)
