"""Which states of an optimiser are in a third memory, where the other one has no room for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.link import HostLink
from tightfit.schemas.updates import Far
from tightfit.stages.combine.whole.task import BUFFERS, Task

MORE = (0.0, 0.05, 0.15, 0.4, 1.0)
"""Parts of the states that need not be in the third memory, which are put there too where no plan
is found otherwise."""


def with_states_far(task: Task, link: HostLink | None) -> Iterator[Task]:
    """The task with those states in the memory behind a `link` from the other one that this has no
    room for, and then with more of them; with none where there is no such link. Raises
    ConfigError where a memory has no room."""
    tried: set[frozenset[int]] = set()
    for share in MORE if link else MORE[:1]:
        found = replace(task, far=None if link is None else far_of(task, link, share))
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


def far_of(task: Task, link: HostLink, share: float) -> Far | None:
    """What of the states has no room in the other memory, and a share of the rest, evenly along the
    backward, behind a `link`; None where all has room. Raises ConfigError where nothing computes
    beside the other memory."""
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
