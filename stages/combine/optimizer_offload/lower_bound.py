"""What no plan of a whole step goes below.

Looks at the end of the loss, by a linear program over bytes, parts of everything allowed. Each side
of it computes what it has to, and the link moves what it has to:

- A parameter that a side reads comes within it, but for what is on the device when it begins.
- What the backward reads of activations is there, or was sent before and comes back, or is made
  again.
- What is on the device of a parameter when a step begins is there when it ends, with the values of
  the next step: it comes anew, or its states come for an update on the device, unless these are
  always there.
- A gradient leaves, or its parameter does, updated on the device; where that stays, its states do.

States that neither the device nor the offload target has room for come from a third one and go
back. And no plan goes below one in which all parameters are on the device
(`stages.combine.bounds.transfer_bound`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tightfit.stages.combine.bounds.lower_bounds import LossCut, cut_at_loss
from tightfit.stages.combine.bounds.transfer_bound import time_lower_bound_with_transfers
from tightfit.stages.combine.milp import LinearTerm, MilpBuilder, SolverLimits, solve_relaxation
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem

MAX_FILL_STEPS = 1e4
"""What fills the device's room takes no more than so many steps to come, which keeps the figures
near each other."""


def lower_bound_seconds(task: OffloadProblem) -> float:
    """Seconds that every plan of the task, or of the wider one that it is of, takes at least, views
    left out."""
    task = task.unrestricted_problem or task
    loose = task.loose
    moment = cut_at_loss(loose, task.room)
    least = max(
        time_lower_bound_with_transfers(loose, task.room, task.link),
        _LossCutProgram(task, moment).least_seconds(),
    )
    return max(task.microbatches * least, _second_tier_seconds(task))


class _LossCutProgram:
    """The program of one microbatch. Its columns of bytes are in shares of the room of the device,
    those of seconds in shares of `unit`: those up to the end of the loss (`ahead`), and those from
    there on (`behind`)."""

    def __init__(self, task: OffloadProblem, moment: LossCut) -> None:
        self.task = task
        self.moment = moment
        self.matrix = MilpBuilder()
        self.room = float(max(task.room, 1))
        self.unit = max(moment.once, 1e-9)
        self.filling = min(self.room / task.link.bandwidth / self.unit, MAX_FILL_STEPS)
        """What it takes to fill the room over the link."""
        remote = task.remote
        trained = {storage: value for storage, value in remote.items() if value in task.updates}
        self.trained, self.frozen = self._share(trained), self._share(remote.keys() - trained)
        self.states = min((self._states(s, value) for s, value in trained.items()), default=0.0)
        """The least bytes of states for one of a parameter."""
        self.before, self.after = (
            self._share(parameters_read(task, side)) for side in (True, False)
        )
        most = 4 * self.filling * (self.before + self.after + self.trained + 1)
        most += 2 * sum(2 * self.filling * size + seconds for size, seconds in self._groups())
        share = self.matrix.share
        self.ahead, self.behind = (share(1.0, most + 2.0) for _ in range(2))
        self.begins, self.kept = share(), share(0.0, self.after)
        self.always, self.early = share(0.0, self.trained), share()
        self.returns, self.leaves = share(), share(0.0, self.trained)
        self._add()

    def least_seconds(self) -> float:
        """The seconds of both sides together, at least."""
        return solve_relaxation(self.matrix.sparse(), SolverLimits()).bound * self.unit

    def _add(self) -> None:
        moment, matrix = self.moment, self.matrix
        sent: list[tuple[float, LinearTerm]] = []
        stays: list[tuple[float, LinearTerm]] = []
        again: list[tuple[float, LinearTerm]] = []
        total = 0.0
        for size, seconds in self._groups():
            total += size
            there, away, made = matrix.share(), matrix.share(), matrix.share()
            matrix.at_least(1.0, [(1.0, there), (1.0, away), (1.0, made)])
            stays.append((size, there))
            sent.append((size, away))
            again.append((seconds, made))
        room = total - moment.missing / self.room
        self._fits(1.0, [(1.0, self.begins), (self.states, self.always)])
        beside = [(1.0, self.kept), (self.states, self.always), (1.0, self.early), *stays]
        self._fits(room, beside)
        self._takes(self.ahead, moment.before / self.unit, [])
        self._takes(self.behind, moment.after / self.unit, again)
        self._add_updates()
        comes = self.before, [(-1.0, self.begins), (1.0, self.early)]
        back = self.after, [(-1.0, self.kept), (-1.0, self.early), (1.0, self.returns), *sent]
        if self.task.link.shared:
            self._moves(self.ahead, comes[0], [*comes[1], *sent])
            self._moves(self.behind, back[0], [*back[1], (1.0, self.leaves)])
            return
        self._moves(self.ahead, *comes)
        self._moves(self.ahead, 0.0, sent)
        self._moves(self.behind, *back)
        self._moves(self.behind, 0.0, [(1.0, self.leaves)])

    def _add_updates(self) -> None:
        """What returns for the next step, and what leaves by updates: of several microbatches the
        last one alone updates, and sums may be on the device."""
        matrix = self.matrix
        if self.task.microbatches > 1:
            matrix.at_least(self.trained - self.task.budget / self.room, [(1.0, self.leaves)])
            return
        least = min(self.states, 1.0)
        ends = [(-least, self.begins), (least, self.always)]
        matrix.at_least(-least * self.frozen, [(1.0, self.returns), *ends])
        matrix.at_least(self.trained * least, [(1.0, self.leaves), (least, self.always)])
        matrix.at_least(self.trained, [(1.0, self.leaves), (1.0, self.begins)])

    def _fits(self, room: float, terms: Iterable[tuple[float, LinearTerm]]) -> None:
        self.matrix.at_least(-room, [(-size, term) for size, term in terms])

    def _takes(
        self, side: LinearTerm, least: float, terms: Iterable[tuple[float, LinearTerm]]
    ) -> None:
        """A side takes at least some seconds, and those of terms."""
        self.matrix.at_least(least, [(1.0, side), *((-weight, term) for weight, term in terms)])

    def _moves(
        self, side: LinearTerm, least: float, terms: Iterable[tuple[float, LinearTerm]]
    ) -> None:
        """A side takes at least as long as bytes take over the link."""
        scale = self.filling
        self._takes(side, scale * least, [(scale * weight, term) for weight, term in terms])

    def _groups(self) -> list[tuple[float, float]]:
        """What the backward reads: shares of the room, and shares of the unit to make it again."""
        return [(size / self.room, seconds / self.unit) for size, seconds in self.moment.groups]

    def _share(self, storages: Iterable[int]) -> float:
        return sum(self.task.graph.storages[storage] for storage in storages) / self.room

    def _states(self, storage: int, value: int) -> float:
        return self.task.updates[value].states / max(self.task.graph.storages[storage], 1)


def _second_tier_seconds(task: OffloadProblem) -> float:
    """What the link to a second offload tier takes at least."""
    if task.far is None:
        return 0.0
    link, near = task.far.link, replace(task, far=None)
    there = near.played(frozenset(), here=False).host_bytes(task.graph)
    size = max(there - task.link.room - task.budget, 0)
    return size / link.bandwidth * (2 if link.shared else 1)


def parameters_read(task: OffloadProblem, forward: bool) -> set[int]:
    """The parameters, as storages, that a side of the loss reads."""
    graph = task.graph
    phases = ("forward", "loss") if forward else ("backward",)
    found = {
        graph.values[value].storage
        for op in graph.ops
        if op.phase in phases and not graph.is_view(op)
        for value in op.inputs
    }
    return found & task.remote.keys()
