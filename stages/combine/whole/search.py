"""Looks for a plan of a whole step: how much of the device activations have, how much of the link
they take, which parameters are there when the step begins, and how many are updated on the device.

Each choice makes a schedule, which the referee plays; from the best so far, one choice at a time is
changed as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from schemas.errors import ConfigError
from schemas.link import HostLink
from schemas.schedule import Step
from schemas.updates import UpdateCost, Updates
from stages.combine.moment.deciding import Moments
from stages.combine.polish.polisher import Polished, Polisher
from stages.combine.schedule.executions import runs
from stages.combine.schedule.leaving import leaving
from stages.combine.schedule.opening import Opener
from stages.combine.transfers.search import PRICES, Linker
from stages.combine.whole.base import Base, base_of
from stages.combine.whole.placing import Moved, TooLittleError, placed
from stages.combine.whole.task import Task
from stages.combine.whole.windows import windows_of
from stages.replay.microbatches import together
from stages.replay.referee import Replay, replay

SLICES = 1024
"""Gradients are handed over in about so many parts: each can leave as soon as it is whole."""
SHARES = (0.9, 0.8, 0.7, 0.55, 0.4, 0.25)
"""Parts of the room that activations may have, which are tried at first."""
CLOSER = tuple(number / 20 for number in range(19, 1, -1))
"""Those that are tried where none of the first leads to a plan."""
FINER = (0.05, 0.025)
LINKS = (0.15, 0.3, 0.45, 0.6)
"""Parts of the link that activations may take."""
THERE = (0.0, 0.25, 0.5, 0.75)
HERE = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Choice:
    """Parts of the room that activations have, of the link that they take, of the room for
    parameters that are there when the step begins, and of the parameters updated on the device."""

    activations: float
    linked: float = 0.0
    there: float = 0.0
    here: float = 0.0


@dataclass(frozen=True)
class Found:
    """A plan: the choice, the optimiser as the referee takes it, and what that says; `adding` is
    what it says of each microbatch that is not the last one, where there are several. `seconds` are
    those of all."""

    choice: Choice
    updates: Updates
    replay: Replay
    adding: Replay | None
    seconds: float


class Search:
    """Plans of one task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.loose = task.loose
        self.polisher = Polisher(self.loose)
        self.opener = Opener(task.graph, task.problem, SLICES)
        self.leaving = leaving(task.graph, self.loose)
        self.tried: dict[Choice, Found | None] = {}
        self.bases: dict[tuple[float, float], Base | None] = {}
        self.sequences: dict[float, Polished | None] = {}
        self.refused = ""
        self.can_leave = task.leaving

    def best(self) -> Found:
        """The fastest plan found; raises ConfigError where none is found, or a memory has no room
        for what is always in it."""
        self.task.check_rooms()
        host = any(cost.away_seconds != float("inf") for cost in self.task.updates.values())
        several = self.task.microbatches > 1
        if several and not host:
            raise ConfigError(
                f"nothing computes beside {self.task.link.to}, where gradients of several "
                "microbatches are added up"
            )
        measured = self.task.measured
        here = 0.0 if host and (several or measured is None) else 1.0
        moves = host and not several and (measured is None or measured.spare)
        begins = {here, 0.0} if moves else {here}
        found = [self.look(Choice(share, 0.0, 0.25, h)) for h in sorted(begins) for share in SHARES]
        best = _fastest(found)
        if best is None:
            best = _fastest([self.look(Choice(share, 0.0, 0.0, here)) for share in CLOSER])
        if best is None and host and here:
            best = _fastest([self.look(Choice(share, 0.0, 0.0, 0.0)) for share in SHARES])
        if best is None:
            raise ConfigError(
                f"no plan is known that fits in {self.task.budget} bytes{self.refused}"
            )
        while True:
            nearby = [self.look(choice) for choice in _near(best.choice, moves)]
            better = _fastest([best, *nearby])
            if better is None or better.seconds >= best.seconds:
                return best
            best = better

    def look(self, choice: Choice) -> Found | None:
        """The plan of a choice, None where there is none."""
        if choice not in self.tried:
            self.tried[choice] = self._made(choice)
        return self.tried[choice]

    def _made(self, choice: Choice) -> Found | None:
        base = self._base(choice.activations, choice.linked)
        if base is None:
            return None
        there, here = self._there(choice.there), self._here(base, choice.here)
        away = set(self.task.remote.values()) & self.task.updates.keys() - here
        updates = self.task.played(there, bool(here), away=bool(away))
        last = self._step(base, updates, here)
        if last is None:
            return None
        several = self.task.microbatches - 1
        adding = None
        if several:
            adding = self._step(base, self.task.played(there, False, adds=True), frozenset())
            if adding is None:
                return None
        seconds = together(last, adding, several + 1).seconds
        return Found(choice, updates, last, adding, seconds)

    def _step(self, base: Base, updates: Updates, here: frozenset[int]) -> Replay | None:
        """What the referee says of one microbatch, None where it does not fit."""
        task = self.task
        own = frozenset() if updates.adds else here | task.small
        margin = max((task.graph.storages[storage] for storage in task.remote), default=0)
        seconds_of = {s: task.link.seconds(task.graph.storages[s]) for s in task.remote}
        beside = max((_most(task.updates[value], task) for value in own), default=0)
        room = task.room - updates.staging - updates.bench - beside
        frozen = updates.remote - updates.costs.keys()
        stays = updates.there if updates.adds else updates.there & (here | frozen)
        windows = windows_of(
            base, task.remote, updates.there, here, stays, room - margin, seconds_of
        )
        moved = Moved(updates, own, windows, room, max(base.seconds), margin)
        try:
            steps = placed(base, moved, task.link)
        except TooLittleError as error:
            self.refused = self._said(base, error)
            return None
        played = replay(task.graph, task.costs, steps, link=task.link, updates=updates)
        away = played.transfers.host_peak if played.transfers else 0
        most = played.peak
        if task.measured is not None:
            first = replace(updates, first=True)
            begun = replay(task.graph, task.costs, steps, link=task.link, updates=first)
            most = max(most, begun.peak - (task.sums if updates.adds else 0))
        taken = most + updates.staging + updates.bench
        fits = taken <= task.room and away <= task.link.room
        return played if fits else None

    def _said(self, base: Base, error: TooLittleError) -> str:
        """What a refusal says of the last plan that did not fit."""
        if error.step >= len(base):
            return ""
        action = base.steps[error.step].action
        op = getattr(action, "op", None)
        if op is None:
            return ""
        found = self.task.graph.ops[op]
        module = f" of {found.module}" if found.module else ""
        return f": {found.target}{module} has no room beside what waits then"

    def _there(self, share: float) -> frozenset[int]:
        """The parameters that are used first, of a part of the room."""
        left, found = share * self.task.room, []
        for storage, value in self.task.remote.items():
            left -= self.task.graph.storages[storage]
            if left < 0:
                break
            found.append(value)
        return frozenset(found)

    def _here(self, base: Base, share: float) -> frozenset[int]:
        """A part of the parameters, by bytes, evenly along the backward."""
        far = self.task.far.values if self.task.far else frozenset()
        values = {value: s for s, value in self.task.remote.items() if value not in far}
        stay = values.keys() - self.can_leave
        due, found = 0.0, sorted(stay & base.wholes.keys())
        for value in sorted(base.wholes, key=base.wholes.__getitem__):
            if value not in values or value in stay:
                continue
            size = self.task.graph.storages[values[value]]
            due += share * size
            if due >= size / 2:
                found.append(value)
                due -= size
        return frozenset(found)

    def _base(self, activations: float, linked: float) -> Base | None:
        key = (activations, linked)
        if key not in self.bases:
            steps = self._opened(activations, linked)
            task = self.task
            self.bases[key] = (
                None
                if steps is None
                else base_of(task.graph, task.costs, steps, task.remote, task.link)
            )
        return self.bases[key]

    def _opened(self, activations: float, linked: float) -> list[Step] | None:
        """The schedule of the activations alone; gradients do not stay in what it may take."""
        budget = int(activations * self.task.room)
        polished = self._sequence(activations, budget)
        if polished is None:
            return None
        if linked:
            link = replace(self.task.link, bandwidth=linked * self.task.link.bandwidth)
            return self._linked(polished, budget, link)
        nodes = self.task.problem.nodes
        ops = [nodes[position].op for position in polished.sequence]
        return self.opener.of_actions(runs(self.task.problem, ops), True, polished.ceiling)

    def _linked(self, polished: Polished, budget: int, link: HostLink) -> list[Step] | None:
        linker = Linker(self.loose, link, self.leaving)
        found = linker.plan(budget, [polished.sequence], PRICES)
        if found is None or not found.stays:
            return None
        return self.opener.of_actions(linker.placer.actions(found), True, found.ceiling)

    def _sequence(self, activations: float, budget: int) -> Polished | None:
        if activations not in self.sequences:
            starts: Sequence[Sequence[int]] = [self.polisher.keep_all]
            if self.polisher.measure(self.polisher.keep_all)[0] > budget:
                starts = [*Moments(self.loose).drafts(budget), *starts]
            found = self.polisher.refine(starts, budget)
            self.sequences[activations] = found if found.peak <= budget else None
        return self.sequences[activations]


def _most(cost: UpdateCost, task: Task) -> int:
    """The most bytes of an update beyond parameter, gradient and staging, in the first step, too,
    where that was measured."""
    return cost.peak if task.measured is None else max(cost.peak, cost.first[0])


def _fastest(found: Sequence[Found | None]) -> Found | None:
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.seconds, default=None)


def _near(choice: Choice, host: bool) -> Iterator[Choice]:
    """Choices that differ in one thing."""
    for step in FINER:
        for other in (choice.activations - step, choice.activations + step):
            if 0 < other < 1:
                yield replace(choice, activations=round(other, 3))
    for there in {*THERE, *(round(choice.there + step, 3) for step in (-0.1, -0.05, 0.05, 0.1))}:
        if 0 <= there < 1:
            yield replace(choice, there=there)
    for here in HERE if host else ():
        yield replace(choice, here=here)
    for linked in (0.0, *LINKS):
        yield replace(choice, linked=linked)
