"""Looks for a plan of a whole step: how much of the device activations have, how much of the link
they take, which parameters are there when the step begins, and how many are updated on the device.

Each choice makes a schedule, which the referee plays; from the best so far, one choice at a time is
changed as long as that helps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.updates import Updates
from tightfit.stages.combine.whole.accumulating import accumulating
from tightfit.stages.combine.whole.base import Base
from tightfit.stages.combine.whole.bases import Bases
from tightfit.stages.combine.whole.choice import Choice, ViewKey, beside, near
from tightfit.stages.combine.whole.moved import Moved, TooLittleError, TooSlowError
from tightfit.stages.combine.whole.needs import name_of
from tightfit.stages.combine.whole.placing import placed
from tightfit.stages.combine.whole.task import Task
from tightfit.stages.combine.whole.view import View
from tightfit.stages.combine.whole.windows import windows_of
from tightfit.stages.replay.line import executions
from tightfit.stages.replay.microbatches import together
from tightfit.stages.replay.referee import Replay, replay

SHARES = (0.9, 0.8, 0.7, 0.55, 0.4, 0.25)
"""Parts of the room that activations may have, which are tried at first."""
CLOSER = tuple(number / 20 for number in range(19, 1, -1))
"""Those that are tried where none of the first leads to a plan."""
BEGINS = ((0.25, 0.0), (0.5, 1.0), (0.75, 1.0))
"""Parts of the room for parameters that are there when the step begins, and which (`Choice.last`),
that are tried with each."""
TRIES = 4
"""How often activations have less where hardly anything fits."""


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


PlanKey = tuple[ViewKey, int, float, frozenset[int], frozenset[int]]
"""What a plan is placed by: its base, and the parameters that are there, and updated here."""


class Search:
    """Plans of one task; `views` may be those of another one that differs in its budget, or in
    which states stay on the device."""

    def __init__(self, task: Task, views: dict[ViewKey, View] | None = None) -> None:
        self.task = task
        self.bases = Bases(task, {} if views is None else views)
        self.tried: dict[Choice, Found | None] = {}
        self.made: dict[PlanKey, tuple[Found | None, int]] = {}
        """What was placed, also for other choices that come to the same, and what it lacked."""
        self.slow: dict[PlanKey, float] = {}
        """Seconds that plans take longer than, which were not placed to their ends."""
        self.lacking = 0
        """Bytes by which the last plan that was tried did not fit, where that is known."""
        self.closest_bytes = 0
        """Those of the device that the closest plan takes where it does not fit."""
        self.away_bytes = 0
        """The fewest of the other memory that a plan takes for which this has no room."""
        self.can_leave = task.leaving

    def best(self) -> Found:
        """The fastest plan found; raises ConfigError where none is found, or a memory has no room
        for what is always in it."""
        return self.improved(self.begun())

    def begun(self) -> Found:
        """The fastest plan of those that are tried ahead of the neighbours of one; raises
        ConfigError as `best` does."""
        self.check()
        here = self.closest_choices[0].here
        best = self.first()
        if best is None:
            best = self._best_of(Choice(part, 0.0, 0.0, here) for part in CLOSER)
        if best is None and self.task.computes_away and here:
            best = self._best_of(Choice(part, 0.0, 0.0, 0.0) for part in SHARES)
        for choice in self.closest_choices:
            best = best or self.closest(choice)
        if best is None:
            raise ConfigError(self._refusal())
        return best

    def first(self, shares: Sequence[float] = SHARES) -> Found | None:
        """The fastest plan of those that are tried at first, with parts of the room for
        activations; all updates that may be are done in one memory, and then in the other one where
        that can be faster."""
        here = self.closest_choices[0].here
        best = self._begins(shares, here)
        if not self.moves or (not here and best and best.seconds <= self.task.least_here):
            return best
        most = best.seconds if best else math.inf
        return _fastest([best, self._begins(shares, 1.0 - here, most)])

    def _begins(self, shares: Sequence[float], here: float, most: float = math.inf) -> Found | None:
        choices = [
            Choice(part, 0.0, there, here, last=last) for part in shares for there, last in BEGINS
        ]
        return self._best_of(choices, most)

    def check(self) -> None:
        """Raises ConfigError where a memory has no room for what is always in it, or nothing adds
        gradients up."""
        self.task.check_rooms()
        if self.task.microbatches > 1 and not self.task.computes_away:
            raise ConfigError(
                f"nothing computes beside {self.task.link.to}, where gradients of several "
                "microbatches are added up"
            )

    def improved(self, best: Found) -> Found:
        """The fastest plan that is found from one by changing one choice at a time; the bytes of
        activations, for which a sequence has to be searched, where nothing else helps."""
        while True:
            for choices in (near(best.choice, self.moves), beside(best.choice)):
                better = _fastest([best, self._best_of(choices, best.seconds)])
                if better is not None and better.seconds < best.seconds:
                    best = better
                    break
            else:
                return best

    @property
    def moves(self) -> bool:
        """Whether it is looked for which updates are done in the other memory."""
        task, measured = self.task, self.task.measured
        spare = measured is None or measured.spare
        return task.computes_away and task.microbatches == 1 and spare

    @property
    def closest_choices(self) -> list[Choice]:
        """Those of hardly any room: all updates that may be are the device's, or none. Where either
        can be it depends on the model which takes less."""
        task, first = self.task, float(self.task.first_here)
        either = task.computes_away and task.microbatches == 1
        return [
            Choice(1.0, here=h, close=True) for h in ((first, 1 - first) if either else (first,))
        ]

    def closest(self, choice: Choice) -> Found | None:
        """A plan that has hardly anything on the device beside what an op or an update needs, where
        the budget is enough for it; what the estimate does not see is taken of activations."""
        view = self.bases.view(choice.view)
        if view.needed > self.task.room:
            return None
        for _ in range(TRIES):
            self.lacking = 0
            found = self.look(choice)
            if found is not None:
                return found
            if not self.lacking:
                break
            total = self.task.budget + self.lacking
            self.closest_bytes = min(self.closest_bytes or total, total)
            less = choice.activations - (self.lacking + 1) / max(self.task.room, 1)
            choice = replace(choice, activations=less)
        return self.least(choice)

    def least(self, choice: Choice) -> Found | None:
        """The plan of a choice in which activations have no more than the least known to do."""
        view = self.bases.view(choice.view)
        least, room = view.least.peak, self.task.room - view.always
        return self.look(replace(choice, activations=(least + 1) / room)) if least < room else None

    def _best_of(self, choices: Iterable[Choice], most: float = math.inf) -> Found | None:
        """The fastest plan of some choices; one that takes longer than `most` seconds may be left
        out."""
        asked, best = list(choices), None
        with self.bases.making(asked) as wait:
            for choice in asked:
                wait(choice)
                found = self.look(choice, most)
                if found is not None and (best is None or found.seconds < best.seconds):
                    best, most = found, min(most, found.seconds)
        return best

    def look(self, choice: Choice, most: float = math.inf) -> Found | None:
        """The plan of a choice, None where there is none, or where it takes longer than `most`
        seconds."""
        if choice not in self.tried:
            try:
                self.tried[choice] = self._made(choice, most)
            except TooSlowError:
                return None
        return self.tried[choice]

    def _made(self, choice: Choice, most: float) -> Found | None:
        """The plan of a choice; raises TooSlowError where it takes longer than `most` seconds."""
        base = self.bases.base(choice)
        if base is None:
            return None
        there, here = self._there(choice), self._here(base, choice.here)
        key = *self.bases.key(choice), there, here
        if self.slow.get(key, 0.0) >= most:
            raise TooSlowError
        if key not in self.made:
            try:
                self.made[key] = self._placed(choice, base, there, here, most), self.lacking
            except TooSlowError:
                self.slow[key] = most
                raise
        found, self.lacking = self.made[key]
        return found and replace(found, choice=choice)

    def _placed(
        self,
        choice: Choice,
        base: Base,
        there: frozenset[int],
        here: frozenset[int],
        most: float,
    ) -> Found | None:
        away = set(self.task.remote.values()) & self.task.updates.keys() - here
        updates = self.task.played(there, bool(here), away=bool(away))
        last = self._step(base, updates, here, choice.close, most)
        if last is None:
            return None
        several = self.task.microbatches - 1
        adding = None
        if several:
            adds = self.task.played(there, False, adds=True)
            left = (most - last.seconds) / several
            adding = self._step(base, adds, frozenset(), choice.close, left)
            if adding is None:
                return None
        seconds = together(last, adding, several + 1).seconds
        return Found(choice, updates, last, adding, seconds)

    def _step(
        self, base: Base, updates: Updates, here: frozenset[int], close: bool, most: float
    ) -> Replay | None:
        """What the referee says of one microbatch, None where it does not fit; raises TooSlowError
        where it takes longer than `most` seconds."""
        task = self.task
        own = frozenset() if updates.adds else here | task.small
        line = base.peak.copy()
        for value in own & base.wholes.keys():
            line[base.wholes[value]] += task.update_peak(value)
        base = replace(base, peak=line)
        # Where there is room, that of the largest is left to gradients on their way.
        margin = max((task.graph.storages[storage] for storage in task.remote), default=0)
        margin = 0 if close else margin
        seconds_of = {s: task.link.seconds(task.graph.storages[s]) for s in task.remote}
        room = task.room - updates.staging - updates.bench - task.kept_numbers
        frozen = updates.remote - updates.costs.keys()
        stays = updates.there if updates.adds else updates.there & (here | frozen)
        windows = windows_of(
            base, task.remote, updates.there, here, stays, room - margin, seconds_of, not close
        )
        moved = Moved(updates, own, windows, room, max(base.seconds), margin)
        try:
            steps = placed(base, moved, task.link, most)
        except TooLittleError as error:
            if error.away:
                self._crowded(error.needed)
            else:
                self.lacking = error.needed - room
            return None
        played = replay(task.graph, task.costs, steps, link=task.link, updates=updates)
        away = played.transfers.host_peak if played.transfers else 0
        most = played.peak
        if task.measured is not None:
            first = replace(updates, first=True)
            begun = replay(task.graph, task.costs, steps, link=task.link, updates=first)
            most = max(most, begun.peak - (task.sums if updates.adds else 0))
        if task.accumulating:
            adding = accumulating(task.graph, task.costs, steps, task.link, updates)
            most = max(most, adding.most - adding.gradients)
        self.lacking = max(most + updates.staging + updates.bench - task.room, 0)
        if self.lacking:
            return None
        if away > task.link.room:
            self._crowded(away)
            return None
        return played

    def _crowded(self, needed: int) -> None:
        """A plan takes so many bytes of the other memory, which has fewer."""
        self.away_bytes = min(self.away_bytes or needed, needed)

    @property
    def crowded(self) -> str:
        """What is said where the other memory has no room for what moves, else ""."""
        return "" if self.lacking else self._crowding

    @property
    def _crowding(self) -> str:
        """What is said of plans that take more of the other memory than it has, "" for none."""
        link = self.task.link
        if not self.away_bytes:
            return ""
        return (
            f"no plan is known that fits in {link.other}, which has {int(link.room):,} bytes: in "
            f"the closest known there are {self.away_bytes:,} with what moves"
        )

    def _refusal(self) -> str:
        """What is said where no plan was found: which op stands in the way, or which memory."""
        if self.crowded:
            return self.crowded
        task, view = self.task, self._smallest_view()
        problem, least = view.problem, view.least
        played = executions(problem, least.sequence, in_place=True, ceiling=least.ceiling)
        worst = max(played, key=lambda run: run.peak)
        total = task.fixed + view.always + worst.peak
        said = f"no plan is known that fits in {task.budget:,} bytes"
        if total <= task.budget and not self.closest_bytes:
            # Those that come closest fit on the device.
            return self._crowding or said
        if total <= task.budget:
            return f"{said}: in the closest known there are {self.closest_bytes:,} with what moves"
        name = name_of(task.graph, problem.nodes[worst.node])
        return f"{said}: in the smallest known there are {total:,} where {name} runs"

    def _smallest_view(self) -> View:
        """That of hardly any room in which the least is known to do."""
        first, *others = (self.bases.view(choice.view) for choice in self.closest_choices)
        for other in others:
            known = first.always + first.least.peak
            if other.needed < known and other.always + other.least.peak < known:
                first = other
        return first

    def _there(self, choice: Choice) -> frozenset[int]:
        """The parameters that are there when a step begins, of a part of the room."""
        task, sizes = self.task, self.task.graph.storages
        room = choice.there * task.room
        if not choice.last:
            ends = accumulate(sizes[storage] for storage in task.remote)
            pairs = zip(task.remote.values(), ends, strict=True)
            return frozenset(value for value, end in pairs if end <= room)
        last = max(choice.last * sum(sizes[storage] for storage in task.remote), room)
        found: list[int] = []
        due, passed, left = 0.0, 0, room
        for storage, value in reversed([*task.remote.items()]):
            size = sizes[storage]
            if passed >= last:
                break
            passed += size
            due += size * room / last
            if due >= size / 2 and size <= left:
                found.append(value)
                due, left = due - size, left - size
        return frozenset(found)

    def _here(self, base: Base, share: float) -> frozenset[int]:
        """A part of the parameters, by bytes, evenly along the backward."""
        far = self.task.far.values if self.task.far else frozenset()
        values = {value: s for s, value in self.task.remote.items() if value not in far}
        stay = values.keys() - self.can_leave | values.keys() & self.task.resident
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


def _fastest(found: Sequence[Found | None]) -> Found | None:
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.seconds, default=None)
