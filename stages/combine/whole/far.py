"""Which states of an optimiser are in a third memory, where the other one has no room for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from schemas.errors import ConfigError
from schemas.link import HostLink
from schemas.updates import Far
from stages.combine.bounds import at_loss
from stages.combine.whole.task import BUFFERS, Task

KEPT = (0.25, 0.5, 0.7)
"""Parts of the device's room for parameters that stay there with their states."""
MORE = (0.0, 0.05, 0.15, 0.4, 1.0)
"""Parts of the states that need not be in the third memory, which are put there too where no plan
is found otherwise."""


def with_states_far(task: Task, link: HostLink | None) -> Iterator[Task]:
    """The task with those states in the memory behind a `link` from the other one that this has no
    room for, and then with more of them; with none where there is no such link. Raises
    ConfigError where a memory has no room."""
    tried: set[frozenset[int]] = set()
    for share in MORE if link else MORE[:1]:
        found = replace(task, far=None if link is None else _far(task, link, share))
        values = found.far.values if found.far else frozenset()
        if values not in tried:
            yield found
        tried.add(values)


def spread(values: Sequence[int], sizes: Sequence[int], wanted: float) -> list[int]:
    """Some of the values, evenly along their order, of about so many bytes."""
    whole = sum(sizes)
    due, chosen, left = 0.0, [], wanted
    for value, size in zip(values, sizes, strict=True):
        due += size * wanted / whole if whole else 0.0
        if left > 0 and due >= size / 2:
            chosen.append(value)
            due -= size
            left -= size
    return chosen


def with_states_kept(task: Task) -> Task | None:
    """A task with states in a third memory where some parameters live on the device with theirs, so
    that less passes the link to that memory: of the room of the device the smallest of `KEPT` with
    which this takes no longer than what is computed meanwhile, else the largest. None where updates
    were measured, or no parameter can stay."""
    if task.far is None or task.measured is not None:
        return None
    link, moment, found = task.far.link, at_loss(task.loose, task.room), None
    for share in KEPT:
        kept = _kept(task, int(share * task.room))
        remote = {storage: value for storage, value in task.remote.items() if value not in kept}
        if not kept or not remote:
            continue
        narrow = replace(task, remote=remote, far=None, wider=task)
        found = replace(narrow, far=_far(narrow, link, 0.0))
        passing = 0 if found.far is None else found.far.states(found.updates)
        if moment.before + passing / link.bandwidth <= moment.once:
            break
    return found


def _kept(task: Task, room: int) -> frozenset[int]:
    """Parameters that take so many bytes with their states, evenly along the step."""
    updates, sizes = task.updates, task.graph.storages
    takes = {v: sizes[s] + updates[v].states for s, v in task.remote.items() if v in updates}
    found, left = [], room
    for value in spread([*takes], [*takes.values()], room):
        if takes[value] <= left:
            found.append(value)
            left -= takes[value]
    return frozenset(found)


def _far(task: Task, link: HostLink, share: float) -> Far | None:
    """What has no room, and a share of the rest, evenly along the backward."""
    costs, may = task.updates, task.leaving
    candidates = [v for v in task.remote.values() if v in costs and v in may and costs[v].states]
    whole = sum(costs[value].states for value in candidates)
    stays = task.played(frozenset(), here=False).stays(task.graph)
    everything = Far(link, frozenset(candidates), BUFFERS)
    lacking = max(stays + everything.staging(costs) - task.link.room, 0)
    if stays <= task.link.room and not share:
        return None
    wanted = min(lacking + share * max(whole - lacking, 0), whole)
    candidates.reverse()
    chosen = spread(candidates, [costs[value].states for value in candidates], wanted)
    left = wanted - sum(costs[value].states for value in chosen)
    for value in candidates:
        if left > 0 and value not in chosen:
            chosen.append(value)
            left -= costs[value].states
    if not chosen:
        return None
    if any(costs[value].away_seconds == float("inf") for value in chosen):
        raise ConfigError(
            f"nothing computes beside {task.link.to}, where states of {link.to} are updated"
        )
    return Far(link, frozenset(chosen), BUFFERS)
