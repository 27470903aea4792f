"""What the simulator knows in the middle of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tightfit.schemas.actions import Action
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.ownership import (
    caller_owned_storages,
    partial_gradient_order,
    partial_gradients_by_owner,
    previous_partial_gradients,
)
from tightfit.schemas.graph.training_graph import BASELINE_KINDS, NO_VALUE, Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.stages.simulate.effects import Effect
from tightfit.stages.simulate.transfer_streams import (
    HostUpdateStream,
    StagingTimeline,
    TransferStreams,
)
from tightfit.util.errors import ScheduleError


@dataclass
class OffloadTargetState:
    """The offload target: the storages that it has `copies` of, their `bytes` and the most so far.

    `moving` says of each storage whose transfer has not been waited for when that ends; those of
    them that are `coming` are on the device. `free_at` is when each stream of transfers is free and
    `span` the start and end of the last transfer. `left` and `returned` are bytes, `waited` the
    seconds for which the compute stream stood still, and `overhead` those that transfers took of
    it.

    The storages of parameters that live there: `stale` are those whose copy is older than what is
    on the device, `old` those that were updated there since they came to it, `dropped` those that
    left it. `ready` says when each that was updated there can be brought. `passing` are the
    transfers of states: stream, begin and end.
    """

    copies: set[int] = field(default_factory=set)
    bytes: int = 0
    peak: int = 0
    moving: dict[int, float] = field(default_factory=dict)
    coming: set[int] = field(default_factory=set)
    free_at: dict[str, float] = field(default_factory=dict)
    span: tuple[float, float] = (0.0, 0.0)
    left: int = 0
    returned: int = 0
    waited: float = 0.0
    overhead: float = 0.0
    stale: set[int] = field(default_factory=set)
    old: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    ready: dict[int, float] = field(default_factory=dict)
    passing: list[tuple[str, float, float]] = field(default_factory=list)

    def restart(self, clock: float) -> None:
        """Counts anew from a moment on, which clocks begin with: nothing begins before it."""
        for stream, end in self.free_at.items():
            self.free_at[stream] = max(end - clock, 0.0)
        for ends in (self.moving, self.ready):
            for storage, end in ends.items():
                ends[storage] = max(end - clock, 0.0)
        self.left = self.returned = 0
        self.waited = self.overhead = 0.0
        self.passing = []


@dataclass
class CarriedStep:
    """What the step before has left: `updates` of parameters (values) that are still to be done,
    the `parameters` (storages) that are older than these, and `gradients` (storages) on the
    device."""

    updates: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)


@dataclass
class SimulatorState:
    """Time, memory and history up to the step at `position`.

    `live_bytes` are above what was allocated when the step began; `live` are the values that have a
    name, by storage; `sums` are the storages of gradients that are added to ones which are there
    already; and `allocated` the storages that the step made and has not freed. `done` are the ops
    that ran, `handed` the gradients given away, `gone` says why a storage may not be read any more.
    `states` are the ops whose random state is saved, `restoring` the one that draws from it next,
    `last_draw` the last one that drew for the first time, `last_once` the last one of the forward
    that may run only once. `asleep` are the values that come back with a storage. `clock` is when
    the compute stream is free; what concerns the `link` and the memory behind it is in `away`. Of
    `updates`, the optimizer, `updated` are the parameters that have been updated; `remote` the
    storages of those that live in the offload target, in whose stream `beside` they may be updated.
    In a cycle, `carried` is what the step before has left (`stages.simulate.cyclic_schedule`).
    """

    graph: Graph
    costs: Costs
    sums: frozenset[int]
    link: HostLink | None = None
    clock: float = 0.0
    live_bytes: int = 0
    loss_at: float = -1.0
    saved: int = 0
    repeated: int = 0
    repeated_seconds: float = 0.0
    position: int = -1
    live: dict[int, set[int]] = field(default_factory=dict)
    offloaded_views: dict[int, set[int]] = field(default_factory=dict)
    allocated: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    handed: set[int] = field(default_factory=set)
    gone: dict[int, str] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    restoring: int = NO_VALUE
    last_draw: int = -1
    last_single_run: int = -1
    away: OffloadTargetState = field(default_factory=OffloadTargetState)
    updates: OptimizerPlan | None = None
    updated: list[int] = field(default_factory=list)
    staging: StagingTimeline | None = None
    beside: HostUpdateStream | None = None
    spent: set[int] = field(default_factory=set)
    carried: CarriedStep | None = None

    def __post_init__(self) -> None:
        graph = self.graph
        self.fixed = graph.baseline_storages()
        self.remote = self.storages_of(self.updates.offloaded if self.updates else ())
        self.there = self.storages_of(self.updates.resident if self.updates else ())
        self.views = graph.view_ops()
        self.whole = {value for op in graph.ops if op.id not in self.views for value in op.outputs}
        self.state_bytes = self.costs.random_state().net
        self.gradients = {gradient.gradient for gradient in graph.gradients}
        self.gradients_in: dict[int, list[int]] = {}
        for gradient in sorted(self.gradients):
            self.gradients_in.setdefault(self.storage(gradient), []).append(gradient)
        self.parts = partial_gradients_by_owner(graph)
        self.owners = {part: owner for owner, parts in self.parts.items() for part in parts}
        self.further = previous_partial_gradients(graph)
        self.contributors = partial_gradient_order(graph)
        self.once = {*self.contributors}.union(*self.contributors.values())
        self.held = caller_owned_storages(graph) - self.fixed
        for value in graph.values:
            if value.kind in BASELINE_KINDS and value.storage not in self.remote - self.there:
                self.live.setdefault(value.storage, set()).add(value.id)

        for storage in sorted(self.there):
            self.allocate(storage)
        self.away.bytes = self.updates.host_bytes(graph) if self.updates else 0
        self.away.peak = self.away.bytes

    def storages_of(self, values: Iterable[int]) -> set[int]:
        """The storages of values."""
        return {self.graph.values[value].storage for value in values}

    def refuse(self, reason: str) -> ScheduleError:
        """The error that names the step."""
        return ScheduleError(f"step {self.position} of the schedule: {reason}")

    def storage(self, value: int) -> int:
        """The storage of a value."""
        return self.graph.values[value].storage

    def is_live(self, value: int) -> bool:
        """Whether a value can be read."""
        return value in self.live.get(self.storage(value), ())

    def is_outdated(self, storage: int) -> bool:
        """Whether a parameter on the device lacks an update of the step before."""
        assert self.carried is not None
        return storage in self.carried.parameters or storage in self.away.old

    def bytes_of(self, values: Iterable[int]) -> int:
        """The bytes of values, each storage once."""
        storages = {self.storage(value) for value in values if value != NO_VALUE}
        return sum(self.graph.storages[storage] for storage in storages)

    def transfer(self, size: int, leaves: bool, after: float = 0.0) -> tuple[float, float]:
        """The begin and end of a transfer that goes into its stream, not before a moment, once the
        compute stream is through with its overhead."""
        assert self.link is not None
        speed = None if self.updates is None else self.updates.speed
        seconds = self.link.seconds(size) if speed is None else speed.seconds(size, leaves)
        overhead = (speed or self.link).overhead_of(size)
        self.clock += overhead
        self.away.overhead += overhead
        streams = TransferStreams(self.link, self.away.free_at)
        return streams.begin(leaves, max(self.clock, after), seconds)

    def transfer_states(self, size: int, leaves: bool, after: float) -> tuple[float, float]:
        """A transfer of states."""
        span = self.transfer(size, leaves, after)
        assert self.link is not None
        self.away.passing.append((self.link.stream(leaves), *span))
        return span

    def wait(self, moment: float) -> None:
        """The compute stream stands still until a moment."""
        end = max(self.clock, moment)
        self.away.waited += end - self.clock
        self.clock = end

    def allocate(self, storage: int) -> None:
        """A storage that the step makes, or brings back, is there from now on."""
        self.offloaded_views.pop(storage, None)
        self.allocated.add(storage)
        self.live_bytes += self.graph.storages[storage]

    def forget(self, storage: int) -> None:
        """A storage and all its values are gone; refuses one that is not there."""
        if storage not in self.allocated:
            raise self.refuse(f"storage {storage} is not live")
        if storage in self.away.moving:
            raise self.refuse(f"storage {storage} goes while it is on its way")
        self.allocated.remove(storage)
        if self.carried is not None:
            self.carried.gradients.discard(storage)
        self.live_bytes -= self.graph.storages[storage]
        self.live.pop(storage, None)

    def forget_sum(self, storage: int) -> None:
        """A gradient that was there before the step, and has been added to, is gone."""
        if storage in self.spent or storage in self.away.moving:
            raise self.refuse(f"storage {storage} is not live")
        self.spent.add(storage)
        self.live_bytes -= self.graph.storages[storage]


@dataclass(frozen=True)
class ActionCheck:
    """How actions are played.

    `play` brings the state from before a step to after it and returns the most bytes live within
    it; `finish` looks at the state after the last step. Both raise ScheduleError for what could not
    run.
    """

    actions: tuple[type[Action], ...]
    play: Callable[[SimulatorState, Effect], int]
    finish: Callable[[SimulatorState], None]
