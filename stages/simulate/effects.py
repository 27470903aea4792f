"""What each step of a schedule reads, makes and drops: for all who follow a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from tightfit.schemas.actions import (
    AccumulateOnHost,
    Compute,
    ComputeLoss,
    Free,
    FreeHostCopy,
    FreeRandomState,
    Offload,
    PassGradient,
    Prefetch,
    RestoreRandomState,
    SaveRandomState,
    UpdateOnDevice,
    UpdateOnHost,
    Wait,
    WriteBuffer,
)
from tightfit.schemas.graph.ownership import (
    caller_owned_storages,
    partial_gradients_by_owner,
    previous_partial_gradients,
)
from tightfit.schemas.graph.recompute_variants import execution_inputs, execution_outputs
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.schemas.schedule import ScheduleStep
from tightfit.util.errors import ScheduleError


class Effect(NamedTuple):
    """What the step at a position of a schedule does.

    `op` is the op that it is about, None where it is about none. Where it `runs` it, `repeated`
    says whether that is not the first time; an alternative is a repetition. `reads` and `makes` are
    values; `drops` are the storages that are gone from the device after it: freed, overwritten,
    given away with a gradient, or used up by an update. `returns` are values that come back from
    an offload target: their storage is there from here on, and is read once the transfer has been
    waited for. `moves` is the storage whose copy in that memory it makes, brings back, waits for,
    reads or forgets, NONE for no such action.
    """

    position: int
    step: ScheduleStep
    op: Op | None = None
    runs: bool = False
    repeated: bool = False
    reads: Sequence[int] = ()
    makes: Sequence[int] = ()
    drops: Sequence[int] = ()
    returns: Sequence[int] = ()
    moves: int = NO_VALUE


def schedule_effects(
    graph: Graph, steps: Sequence[ScheduleStep], accumulate: bool | Collection[int] = False
) -> Iterator[Effect]:
    """The effects of a schedule's steps, in order; with `accumulate`, `.grad` is already there, so
    that every gradient is given away, or those in some storages.

    Raises ScheduleError, naming the step, for an op or a value that the graph does not have.
    """
    walk = _EffectTracker(graph, accumulated_gradient_storages(graph, accumulate))
    for position, step in enumerate(steps):
        yield walk.effect(position, step)


def accumulated_gradient_storages(
    graph: Graph, accumulate: bool | Collection[int]
) -> frozenset[int]:
    """The storages of gradients whose `.grad` is already there: all, none, or those named."""
    if isinstance(accumulate, bool):
        found = {graph.values[gradient.gradient].storage for gradient in graph.gradients}
        return frozenset(found if accumulate else ())
    return frozenset(accumulate)


class _EffectTracker:
    """What has to be known of the steps before one: which ops are `done`, and how many updates each
    gradient, as a storage, is `waiting` for."""

    def __init__(self, graph: Graph, sums: Collection[int]) -> None:
        self.graph = graph
        self.sums = sums
        self.storage = [value.storage for value in graph.values]
        self.further = previous_partial_gradients(graph)
        self.held = graph.baseline_storages() | caller_owned_storages(graph)
        self.first = {owner: parts[0] for owner, parts in partial_gradients_by_owner(graph).items()}
        self.done: set[int] = set()
        self.waiting = Counter(self.storage[gradient] for gradient in self.first.values())

    def effect(self, position: int, step: ScheduleStep) -> Effect:
        """The effect of the next step."""
        match step.action:
            case Compute(op, in_place) | WriteBuffer(op, in_place):
                return self._run(position, step, op, in_place)
            case ComputeLoss(op):
                return self._run(position, step, op, NO_VALUE)
            case PassGradient(value):
                drops = self._given(position, value)
                return Effect(position, step, reads=[value], drops=drops)
            case Free(value):
                return Effect(position, step, drops=[self._storage(position, value)])
            case Offload(value):
                moves = self._storage(position, value)
                return Effect(position, step, reads=[value], moves=moves)
            case Prefetch(value):
                moves = self._storage(position, value)
                return Effect(position, step, returns=[value], moves=moves)
            case Wait(value) | FreeHostCopy(value):
                return Effect(position, step, moves=self._storage(position, value))
            case UpdateOnDevice(value):
                return Effect(position, step, drops=self._used_up(position, value))
            case UpdateOnHost(value) | AccumulateOnHost(value):
                return Effect(position, step, moves=self._gradient(position, value))
            case SaveRandomState(op) | RestoreRandomState(op) | FreeRandomState(op):
                return Effect(position, step, self._op(position, op))
            case unknown:
                name = type(unknown).__name__
                raise _step_error(position, f"nothing says what a {name} reads, makes and drops")

    def _run(self, position: int, step: ScheduleStep, number: int, in_place: int) -> Effect:
        op = self._op(position, number)
        drops = [] if in_place == NO_VALUE else [self._storage(position, in_place)]
        repeated = op.id in self.done or op.id in self.graph.alternative_origins
        self.done.add(op.id)
        reads, makes = (
            execution_inputs(self.graph, op, repeated),
            execution_outputs(self.graph, op, repeated),
        )
        return Effect(position, step, op, True, repeated, reads, makes, drops)

    def _given(self, position: int, value: int) -> list[int]:
        """What goes with a gradient that is handed over."""
        storage = self._storage(position, value)
        given = (storage in self.sums or value in self.further) and storage not in self.held
        return [storage] if given else []

    def _used_up(self, position: int, owner: int) -> list[int]:
        """What goes with the update of a parameter: its gradient, after the last that shares it."""
        storage = self._gradient(position, owner)
        self.waiting[storage] -= 1
        kept = storage in self.sums or storage in self.held
        return [] if self.waiting[storage] or kept else [storage]

    def _gradient(self, position: int, owner: int) -> int:
        """The storage of a parameter's gradient."""
        if owner not in self.first:
            raise _step_error(position, f"value {owner} is updated, which has no gradient")
        return self.storage[self.first[owner]]

    def _storage(self, position: int, value: int) -> int:
        if not 0 <= value < len(self.storage):
            raise _step_error(position, f"there is no value {value}")
        return self.storage[value]

    def _op(self, position: int, number: int) -> Op:
        if not 0 <= number < len(self.graph.ops) + len(self.graph.alternatives):
            raise _step_error(position, f"there is no op {number}")
        return self.graph.op(number)


def _step_error(position: int, sentence: str) -> ScheduleError:
    return ScheduleError(f"step {position} of the schedule: {sentence}")


def touched_values(graph: Graph, effect: Effect) -> list[int]:
    """The values that a step reads, then those that it makes; the loss reads all outputs, since the
    caller has them from there on."""
    reads: Sequence[int] = effect.reads
    if isinstance(effect.step.action, ComputeLoss):
        reads = graph.output_values()
    return [*reads, *effect.makes]


def last_uses(graph: Graph, walked: Iterable[Effect], storages: Collection[int]) -> dict[int, int]:
    """By value in one of some storages, the position of the last step that reads or makes it: what
    others hold is not dropped when its last use has been."""
    return {
        value: effect.position
        for effect in walked
        for value in touched_values(graph, effect)
        if graph.values[value].storage in storages
    }


def resident_after(graph: Graph, walked: Iterable[Effect]) -> dict[int, int]:
    """The storages that are on the device after some steps and were not before them, with the
    position of the step that made each or brought it back."""
    found: dict[int, int] = {}
    for effect in walked:
        for storage in effect.drops:
            found.pop(storage, None)
        for value in (*effect.makes, *effect.returns):
            found.setdefault(graph.values[value].storage, effect.position)
    fixed = graph.baseline_storages()
    return {storage: position for storage, position in found.items() if storage not in fixed}
