"""What no plan of a whole step goes below.

Each side of the loss computes what it has to, and the link brings the parameters that it reads, but
for what the device holds when it begins. A gradient leaves, or states do, but for what the device
holds. And no plan goes below one in which all parameters are on the device
(`stages.combine.transfers.bound`).
"""

from __future__ import annotations

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
    return task.microbatches * least


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
