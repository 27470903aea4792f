"""Which parameters live on the device with their states, where states have no room in the other
memory: what stays passes no link to a third one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.whole.far import far_of, spread, with_states_far
from tightfit.stages.combine.whole.needs import check_needs
from tightfit.stages.combine.whole.search import Found, Search
from tightfit.stages.combine.whole.task import Task
from tightfit.stages.combine.whole.view import View

KEPT = (0.1, 0.25, 0.4, 0.55, 0.7)
"""Parts of the device's room for parameters that stay there with their states."""
MOST_SHARES = 4
"""How many sizes are tried for activations beside these."""


def with_states_kept(search: Search, begun: Found) -> tuple[Search, Found]:
    """A search with the plan that it has begun with or, where states are in a third memory and some
    parameters on the device with theirs make a faster one, that of the task in which they are, so
    that one search goes on from the better. Activations get bytes that sequences are known for."""
    best, better = (search, begun), False
    for task in narrower(search.task):
        own = Search(task, _known_views(search))
        try:
            check_needs(task)
            own.check()
        except ConfigError:
            continue
        found = own.first(_shares(search, own))
        if found is not None and found.seconds < best[1].seconds:
            best, better = (own, found), True
        elif better:
            break
    return best


def with_room(task: Task, link: HostLink | None) -> Iterator[Task]:
    """The tasks of `with_states_far` and, where the third memory has no room for the fewest states,
    those in which parameters live on the device with theirs."""
    first: Task | None = None
    for each in with_states_far(task, link):
        first = first or each
        yield each
    if first and first.far and first.far.states(first.updates) > first.far.link.room:
        yield from narrower(first)


def narrower(task: Task) -> Iterator[Task]:
    """Tasks in which ever more parameters live on the device with their states, and the rest of the
    states where it has room; none without a third memory, nor where updates were measured, whose
    states stay by themselves (`stages.combine.whole.resident`)."""
    if task.far is None or task.measured is not None:
        return
    for share in KEPT:
        kept = _kept(task, int(share * task.room))
        remote = {storage: value for storage, value in task.remote.items() if value not in kept}
        if kept and remote:
            own = replace(task, remote=remote, far=None, wider=task.wider or task)
            yield replace(own, far=far_of(own, task.far.link, 0.0))


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


def _known_views(search: Search) -> dict[tuple[bool, bool], View]:
    """What is known of activations by themselves, which do not ask where parameters live."""
    return {
        key: replace(view, bases={})
        for key, view in search.bases.views.items()
        if key == (False, False)
    }


def _shares(search: Search, own: Search) -> list[float]:
    """The largest parts of a smaller room for which sequences are known."""
    known = [
        size
        for key, view in search.bases.views.items()
        if key == (False, False)
        for size in view.sequences
        if 0 < size < own.task.room
    ]
    return [(size + 0.5) / own.task.room for size in sorted(known, reverse=True)[:MOST_SHARES]]
