"""What no plan of a whole step goes below.

Each side of the loss computes what it has to, and the link brings the parameters that it reads, but
for what the device holds when it begins. A gradient leaves, or states do, but for what the device
holds. States that neither the device nor the other memory has room for come from a third one and
go back. And no plan goes below one in which all parameters are on the device
(`stages.combine.transfers.bound`).
"""

from __future__ import annotations

from dataclasses import replace

from stages.combine.bounds import at_loss
from stages.combine.transfers.bound import least_seconds_linked
from stages.combine.whole.task import Task


def least_whole_seconds(task: Task) -> float:
    """Seconds that every plan of the task takes at least, views left out."""
    loose = task.loose
    moment = at_loss(loose, task.room)
    forward, backward = _read(task, True), _read(task, False)
    sent = sum(task.graph.storages[storage] for storage in task.remote)
    link = task.link

    def seconds(size: int) -> float:
        return max(size - task.budget, 0) / link.bandwidth

    ahead = max(moment.before, seconds(forward))
    moved = [seconds(backward), seconds(sent)]
    behind = max(moment.after, sum(moved) if link.shared else max(moved))
    least = max(ahead + behind, least_seconds_linked(loose, task.room, link))
    return max(task.microbatches * least, _far_seconds(task))


def _far_seconds(task: Task) -> float:
    """What the link to a third memory takes at least."""
    if task.far is None:
        return 0.0
    link, near = task.far.link, replace(task, far=None)
    there = near.played(frozenset(), here=False).stays(task.graph)
    size = max(there - task.link.room - task.budget, 0)
    return size / link.bandwidth * (2 if link.shared else 1)


def _read(task: Task, forward: bool) -> int:
    """The bytes of the parameters that a side of the loss reads."""
    graph = task.graph
    phases = ("forward", "loss") if forward else ("backward",)
    found = {
        graph.values[value].storage
        for op in graph.ops
        if op.phase in phases and not graph.is_view(op)
        for value in op.inputs
    }
    return sum(graph.storages[storage] for storage in found if storage in task.remote)
