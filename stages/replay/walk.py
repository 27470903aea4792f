"""What each step of a schedule reads, makes and drops: for all who follow a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from schemas.actions import (
    Accumulate,
    Compute,
    Free,
    FreeCopy,
    FreeRandom,
    Gradient,
    Loss,
    Offload,
    Optimise,
    OptimiseAway,
    Prefetch,
    RestoreRandom,
    SaveRandom,
    Wait,
    Write,
)
from schemas.contributions import contributions, further_contributions
from schemas.errors import ScheduleError
from schemas.graph import NONE, Graph, Op
from schemas.repeat import makes_of, reads_of
from schemas.schedule import Step


@dataclass(frozen=True)
class Effect:
    """What the step at a position of a schedule does.

    `op` is the op that it is about, None where it is about none. Where it `runs` it, `repeated`
    says whether that is not the first time. `reads` and `makes` are values; `drops` are the
    storages that are gone from the device after it: freed, overwritten, given away with a
    gradient, or used up by an update. `returns` are values that come back from another memory:
    their storage is there from here on, and is read once the transfer has been waited for. `moves`
    is the storage whose copy in that memory it makes, brings back, waits for, reads or forgets,
    NONE for no such action.
    """

    position: int
    step: Step
    op: Op | None = None
    runs: bool = False
    repeated: bool = False
    reads: Sequence[int] = ()
    makes: Sequence[int] = ()
    drops: Sequence[int] = ()
    returns: Sequence[int] = ()
    moves: int = NONE


def effects(graph: Graph, steps: Sequence[Step], accumulate: bool = False) -> Iterator[Effect]:
    """The effects of a schedule's steps, in order; with `accumulate`, `.grad` is already there, so
    that every gradient is given away.

    Raises ScheduleError, naming the step, for an op or a value that the graph does not have.
    """
    further = further_contributions(graph)
    held = graph.fixed_storages() | {graph.values[v].storage for v in graph.held_values()}
    done: set[int] = set()
    first = {owner: parts[0] for owner, parts in contributions(graph).items()}
    waiting = Counter(graph.values[gradient].storage for gradient in first.values())

    def gradient_of(position: int, owner: int) -> int:
        if owner not in first:
            raise ScheduleError(
                f"step {position} of the schedule: value {owner} is updated, which has no gradient"
            )
        return graph.values[first[owner]].storage

    def storage_of(position: int, value: int) -> int:
        if not 0 <= value < len(graph.values):
            raise ScheduleError(f"step {position} of the schedule: there is no value {value}")
        return graph.values[value].storage

    def op_of(position: int, op: int) -> Op:
        if not 0 <= op < len(graph.ops):
            raise ScheduleError(f"step {position} of the schedule: there is no op {op}")
        return graph.ops[op]

    for position, step in enumerate(steps):
        match step.action:
            case Compute(index, in_place) | Write(index, in_place):
                op = op_of(position, index)
                drops = [] if in_place == NONE else [storage_of(position, in_place)]
            case Loss(index):
                op, drops = op_of(position, index), []
            case Gradient(value):
                storage = storage_of(position, value)
                given = (accumulate or value in further) and storage not in held
                drops = [storage] if given else []
                yield Effect(position, step, reads=[value], drops=drops)
                continue
            case Free(value):
                yield Effect(position, step, drops=[storage_of(position, value)])
                continue
            case Offload(value):
                storage = storage_of(position, value)
                yield Effect(position, step, reads=[value], moves=storage)
                continue
            case Prefetch(value):
                storage = storage_of(position, value)
                yield Effect(position, step, returns=[value], moves=storage)
                continue
            case Wait(value) | FreeCopy(value):
                yield Effect(position, step, moves=storage_of(position, value))
                continue
            case Optimise(value):
                storage = gradient_of(position, value)
                waiting[storage] -= 1
                last = not waiting[storage] and not accumulate and storage not in held
                yield Effect(position, step, drops=[storage] if last else [])
                continue
            case OptimiseAway(value) | Accumulate(value):
                yield Effect(position, step, moves=gradient_of(position, value))
                continue
            case SaveRandom(index) | RestoreRandom(index) | FreeRandom(index):
                yield Effect(position, step, op_of(position, index))
                continue
            case unknown:
                raise ScheduleError(
                    f"step {position} of the schedule: nothing says what a "
                    f"{type(unknown).__name__} reads, makes and drops"
                )
        repeated = op.id in done
        done.add(op.id)
        reads, makes = reads_of(graph, op, repeated), makes_of(graph, op, repeated)
        yield Effect(position, step, op, True, repeated, reads, makes, drops)


def named(graph: Graph, effect: Effect) -> list[int]:
    """The values that a step reads, then those that it makes; the loss reads all outputs, since the
    caller has them from there on."""
    reads: Sequence[int] = effect.reads
    if isinstance(effect.step.action, Loss):
        reads = graph.output_values()
    return [*reads, *effect.makes]


def last_named(graph: Graph, walked: Iterable[Effect], storages: Collection[int]) -> dict[int, int]:
    """By value in one of some storages, the position of the last step that reads or makes it: what
    others hold is not dropped when its last use has been."""
    return {
        value: effect.position
        for effect in walked
        for value in named(graph, effect)
        if graph.values[value].storage in storages
    }


def there_after(graph: Graph, walked: Iterable[Effect]) -> dict[int, int]:
    """The storages that are on the device after some steps and were not before them, with the
    position of the step that made each or brought it back."""
    found: dict[int, int] = {}
    for effect in walked:
        for storage in effect.drops:
            found.pop(storage, None)
        for value in (*effect.makes, *effect.returns):
            found.setdefault(graph.values[value].storage, effect.position)
    fixed = graph.fixed_storages()
    return {storage: position for storage, position in found.items() if storage not in fixed}
