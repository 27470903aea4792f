"""What no step goes below, with or without a seam: what each stream has to do from one step to the
next.

A linear program over bytes, parts of everything allowed, looks at two moments, the end of the loss
and the seam:

- The device computes all nodes, what it makes again, and the updates that are its own.
- A parameter comes for the forward and for the backward, but for what stays on the device in
  between: over the loss, or over the seam, and over that with its new value only where it is
  updated on the device. States come for an update on the device and leave after it, unless these
  are always there.
- A gradient leaves, or its parameter does, updated on the device, unless it never leaves that.
- What the backward reads of activations is there at the end of the loss, or was sent and comes
  back, unless all have to stay, or is made again.
- Updates in the offload target take their time there.
"""

from __future__ import annotations

from collections.abc import Iterable

from tightfit.stages.combine.bounds.lower_bounds import cut_at_loss
from tightfit.stages.combine.bounds.transfer_bound import time_lower_bound_with_transfers
from tightfit.stages.combine.milp import LinearTerm, MilpBuilder, SolverLimits, solve_relaxation
from tightfit.stages.combine.optimizer_offload.lower_bound import MAX_FILL_STEPS, parameters_read
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem

Terms = list[tuple[float, LinearTerm]]


def cycle_lower_bound(task: OffloadProblem) -> float:
    """Seconds from one step to the next that every plan of the task takes at least."""
    alone = time_lower_bound_with_transfers(task.loose, task.room, task.link)
    return max(alone, _StreamLoads(task).least_seconds())


class _StreamLoads:
    """The program. Bytes are in shares of the room of the device, seconds in shares of `unit`, what
    computing all nodes once takes."""

    def __init__(self, task: OffloadProblem) -> None:
        self.task, self.cut = task, cut_at_loss(task.loose, task.room)
        self.matrix, self.room = MilpBuilder(), float(max(task.room, 1))
        self.unit = max(self.cut.once, 1e-9)
        self.filling = min(self.room / task.link.bandwidth / self.unit, MAX_FILL_STEPS)
        self.trained = {s: value for s, value in task.remote.items() if value in task.updates}
        updates = [(task.graph.storages[s], task.updates[v]) for s, v in self.trained.items()]
        sized = [(size, cost) for size, cost in updates if size]
        self.states = min((cost.states / size for size, cost in sized), default=0.0)
        self.here_rate = min((cost.seconds / size for size, cost in sized), default=0.0)
        self.host_rate = min((cost.host_seconds / size for size, cost in sized), default=0.0)
        self.step = self.matrix.share(1.0, self._most())
        self._add()

    def least_seconds(self) -> float:
        """The seconds of a step, at least."""
        return solve_relaxation(self.matrix.sparse(), SolverLimits()).bound * self.unit

    def _most(self) -> float:
        """More than a step takes that sends and makes everything, and updates all on the device."""
        size = self._bytes(self.task.remote)
        groups = sum(self._share(bytes_) for bytes_, _ in self.cut.groups)
        again = sum(seconds for _, seconds in self.cut.groups) / self.unit
        moves = 4 * (2 + 2 * self.states) * (size + groups) * self.filling
        return 4.0 + moves + again + self._seconds(self.here_rate) * size + self._small_updates()

    def _add(self) -> None:
        task, matrix = self.task, self.matrix
        before, after = (parameters_read(task, side) for side in (True, False))
        trained, both = self._bytes(self.trained), self._bytes(before & after)
        frozen = self._bytes(task.remote.keys() - self.trained.keys())
        sent, stays, made = self._activations()
        here, host = matrix.share(0.0, trained), matrix.share(0.0, trained)
        matrix.at_least(trained, [(1.0, here), (1.0, host)])
        if not task.updates_on_host:
            matrix.at_least(0.0, [(-1.0, host)])
        over_loss, over_seam = matrix.share(0.0, both), matrix.share()
        matrix.at_least(-frozen, [(-1.0, over_seam), (1.0, here)])
        always, never = matrix.share(0.0, trained), matrix.share(0.0, trained)
        for least in (here, over_loss, over_seam):
            matrix.at_least(0.0, [(1.0, least), (-1.0, never)])
        matrix.at_least(0.0, [(1.0, here), (-1.0, always)])
        self._fits(1.0, [(1.0, over_seam), (self.states, always)])
        total = sum(self._share(size) for size, _ in self.cut.groups)
        room = total - self.cut.missing / self.room
        self._fits(room, [(1.0, over_loss), (self.states, always), *stays])
        updates = [(self._seconds(self.here_rate), here)]
        self._takes(1.0 + self._small_updates(), [*made, *updates], 1.0)
        if task.updates_on_host:
            self._takes(0.0, [(1.0, host)], self._seconds(self.host_rate))
        read = self._bytes(before) + self._bytes(after)
        states = [(self.states, here), (-self.states, always)]
        comes = [(-1.0, over_loss), (-1.0, over_seam), *states, *sent]
        leaves = [(1.0, host), (1.0, here), (-1.0, never), *states, *sent]
        if task.link.shared:
            self._takes(read, [*comes, *leaves], self.filling)
            return
        self._takes(read, comes, self.filling)
        self._takes(0.0, leaves, self.filling)

    def _activations(self) -> tuple[Terms, Terms, Terms]:
        """What the backward reads: bytes that are sent, bytes that stay, and seconds to make it
        again."""
        sent: Terms = []
        stays: Terms = []
        made: Terms = []
        for size, seconds in self.cut.groups:
            there, again = self.matrix.share(), self.matrix.share()
            away = self.matrix.share(0.0, 0.0 if self.task.activations_stay else 1.0)
            self.matrix.at_least(1.0, [(1.0, there), (1.0, away), (1.0, again)])
            stays.append((self._share(size), there))
            sent.append((self._share(size), away))
            made.append((seconds / self.unit, again))
        return sent, stays, made

    def _fits(self, room: float, terms: Terms) -> None:
        self.matrix.at_least(-room, [(-size, term) for size, term in terms])

    def _takes(self, least: float, terms: Terms, scale: float) -> None:
        """A step takes at least so much, and that of terms, of which each takes `scale`."""
        own = [(-scale * weight, term) for weight, term in terms]
        self.matrix.at_least(scale * least, [(1.0, self.step), *own])

    def _small_updates(self) -> float:
        """What the updates of parameters take that live on the device."""
        return sum(self.task.updates[value].seconds for value in self.task.small) / self.unit

    def _seconds(self, rate: float) -> float:
        """What takes `rate` seconds a byte, for the bytes of the room."""
        return rate * self.room / self.unit

    def _share(self, size: int) -> float:
        return size / self.room

    def _bytes(self, storages: Iterable[int]) -> float:
        return sum(self.task.graph.storages[storage] for storage in storages) / self.room
