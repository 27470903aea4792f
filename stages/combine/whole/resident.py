"""Which states of an optimiser stay on the device, where that saves more than their room would."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tightfit.schemas.actions import Optimise
from tightfit.stages.combine.whole.choice import Choice
from tightfit.stages.combine.whole.far import spread
from tightfit.stages.combine.whole.search import Found, Search
from tightfit.stages.combine.whole.task import Task

SHARES = (0.05, 0.15, 0.35, 0.6, 0.9)
"""Parts of the room that states may have, which are tried beside what a plan leaves of it."""
NEAR = 0.005
"""A part of the time by which plans differ no more than predictions do anyway."""


def with_resident_states(search: Search, best: Found) -> tuple[Task, Found]:
    """The task and its plan: the best one of a search or, where updates are run, one in which the
    states of some parameters stay on the device. These are updated there, and their states take no
    link. Of plans that are nearly as fast as the fastest one that which moves the fewest bytes."""
    task = search.task
    found = [(search, best)]
    tried: set[frozenset[int]] = {task.resident}
    for size in _sizes(search, best) if task.measured is not None else ():
        resident = _resident(task, best, size)
        if resident in tried:
            continue
        tried.add(resident)
        own = Search(replace(task, resident=resident), search.bases.views)
        looked = [own.look(choice) for choice in _alike(search, own, best.choice)]
        found += [(own, other) for other in looked if other is not None]
    fastest = min(found, key=lambda each: each[1].seconds)
    least = min(found, key=lambda each: (_moved(each[1]), each[1].seconds))
    for own, other in {id(each): each for each in (fastest, least)}.values():
        if own is not search:
            found.append((own, own.improved(other)))
    first = min(each.seconds for _, each in found)
    near = [each for each in found if each[1].seconds <= first * (1 + NEAR)]
    chosen, plan = min(near, key=lambda each: (_moved(each[1]), each[1].seconds))
    return chosen.task, plan


def _moved(found: Found) -> int:
    """The bytes that a plan sends and brings."""
    moved = [each.transfers for each in (found.replay, found.adding) if each is not None]
    return sum(each.left + each.returned for each in moved if each is not None)


def _sizes(search: Search, best: Found) -> Iterator[int]:
    """The bytes that states may have: what the plan leaves free, and parts of the room."""
    room, updates = search.task.room, best.updates
    spare = room - best.replay.peak - updates.staging - updates.bench
    yield from (max(spare, 0), *(int(share * room) for share in SHARES))


def _resident(task: Task, best: Found, most: int) -> frozenset[int]:
    """Parameters whose states take `most` bytes at most: small ones, which would wait longest for
    few bytes, then some of those that the plan updates on the device, evenly along the backward."""
    far = task.far.values if task.far else frozenset()
    last = [step.action.value for step in best.replay.steps if isinstance(step.action, Optimise)]
    may = [v for v in last if v not in far and task.updates[v].states]
    if task.microbatches > 1:
        may = [value for value in may if value in task.small]
    return staying({value: task.updates[value].states for value in may}, task.small, most)


def staying(states: Mapping[int, int], small: Collection[int], most: int) -> frozenset[int]:
    """Some of the parameters, of which the `states` take so many bytes, `most` in all: the `small`
    ones first, those of the fewest bytes ahead, then some of the others, evenly along their
    order."""
    found: list[int] = []
    left = most
    first = sorted((value for value in states if value in small), key=states.__getitem__)
    others = [value for value in states if value not in small]
    room = max(most - sum(states[value] for value in first), 0)
    chosen = spread(others, [states[value] for value in others], room)
    for value in (*first, *chosen, *others):
        if value not in found and states[value] <= left:
            found.append(value)
            left -= states[value]
    return frozenset(found)


def _alike(before: Search, now: Search, choice: Choice) -> Iterator[Choice]:
    """A choice with as many bytes for activations as before, and with so many less as there are
    states."""
    view = now.bases.view(choice.view)
    whole = now.task.room - view.always
    taken = before.task.room - now.task.room
    known = before.bases.budget(choice.view, choice.activations)
    for budget in (known, known - taken):
        if 0 < budget < whole:
            yield replace(choice, activations=(budget + 0.5) / whole)
