"""What the referee knows in the middle of a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.contributions import contributions, further_contributions
from schemas.costs import Costs
from schemas.errors import ScheduleError
from schemas.graph import FIXED_KINDS, NONE, Graph


@dataclass
class State:
    """Time, memory and history up to the step at `position`.

    `live_bytes` are above what was allocated when the step began; `live` are the values that have a
    name, by storage, and `allocated` the storages that the step made and has not freed. `done` are
    the ops that ran, `handed` the gradients given away, `gone` says why a storage may not be read
    any more. `states` are the ops whose random state is saved, `restoring` the one that draws from
    it next, `last_draw` the last one that drew for the first time, `last_once` the last one of the
    forward that may run only once.
    """

    graph: Graph
    costs: Costs
    accumulate: bool
    clock: float = 0.0
    live_bytes: int = 0
    loss_at: float = -1.0
    saved: int = 0
    repeated: int = 0
    repeated_seconds: float = 0.0
    position: int = -1
    live: dict[int, set[int]] = field(default_factory=dict)
    allocated: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    handed: set[int] = field(default_factory=set)
    gone: dict[int, str] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    restoring: int = NONE
    last_draw: int = -1
    last_once: int = -1

    def __post_init__(self) -> None:
        graph = self.graph
        self.fixed = graph.fixed_storages()
        self.views = {op.id for op in graph.ops if graph.is_view(op)}
        self.state_bytes = self.costs.random_state().net
        self.gradients = {gradient.gradient for gradient in graph.gradients}
        self.gradients_in: dict[int, list[int]] = {}
        for gradient in sorted(self.gradients):
            self.gradients_in.setdefault(self.storage(gradient), []).append(gradient)
        self.parts = contributions(graph)
        self.owners = {part: owner for owner, parts in self.parts.items() for part in parts}
        self.further = further_contributions(graph)
        self.held = {graph.values[value].storage for value in graph.held_values()} - self.fixed
        for value in graph.values:
            if value.kind in FIXED_KINDS:
                self.live.setdefault(value.storage, set()).add(value.id)

    def refuse(self, reason: str) -> ScheduleError:
        """The error that names the step."""
        return ScheduleError(f"step {self.position} of the schedule: {reason}")

    def storage(self, value: int) -> int:
        """The storage of a value."""
        return self.graph.values[value].storage

    def is_live(self, value: int) -> bool:
        """Whether a value can be read."""
        return value in self.live.get(self.storage(value), ())

    def bytes_of(self, values: Iterable[int]) -> int:
        """The bytes of values, each storage once."""
        storages = {self.storage(value) for value in values if value != NONE}
        return sum(self.graph.storages[storage] for storage in storages)

    def allocate(self, storage: int) -> None:
        """A storage that the step makes is there from now on."""
        self.allocated.add(storage)
        self.live_bytes += self.graph.storages[storage]

    def forget(self, storage: int) -> None:
        """A storage and all its values are gone; refuses one that is not there."""
        if storage not in self.allocated:
            raise self.refuse(f"storage {storage} is not live")
        self.allocated.remove(storage)
        self.live_bytes -= self.graph.storages[storage]
        self.live.pop(storage, None)
