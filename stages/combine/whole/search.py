"""Looks for a plan of a whole step: how much of the device activations have, how much of the link
they take, which parameters are there when the step begins, and how many are updated on the device.

Each choice makes a schedule, which the referee plays; from the best so far, one choice at a time is
changed as long as that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from schemas.engines import Engine
from schemas.errors import ConfigError
from schemas.link import HostLink
from schemas.problem import Problem
from schemas.schedule import Step
from schemas.updates import Updates
from stages.combine.bounds import least_peak
from stages.combine.moment.deciding import Moments
from stages.combine.moment.limits import Limits
from stages.combine.polish.polisher import Polished, Polisher
from stages.combine.schedule.executions import runs
from stages.combine.schedule.leaving import leaving
from stages.combine.schedule.opening import Opener
from stages.combine.transfers.search import PRICES, Linker
from stages.combine.whole.accumulating import accumulating
from stages.combine.whole.base import Base, base_of
from stages.combine.whole.needs import close_problem, name_of
from stages.combine.whole.placing import Moved, TooLittleError, placed
from stages.combine.whole.task import Task
from stages.combine.whole.windows import windows_of
from stages.replay.line import executions
from stages.replay.microbatches import together
from stages.replay.referee import Replay, replay

SLICES = 1024
"""Gradients are handed over in about so many parts: each can leave as soon as it is whole."""
SHARES = (0.9, 0.8, 0.7, 0.55, 0.4, 0.25)
"""Parts of the room that activations may have, which are tried at first."""
CLOSER = tuple(number / 20 for number in range(19, 1, -1))
"""Those that are tried where none of the first leads to a plan."""
TRIES = 4
"""How often activations have less where hardly anything fits."""
FINER = (0.05, 0.025)
LINKS = (0.15, 0.3, 0.45, 0.6)
"""Parts of the link that activations may take."""
THERE = (0.0, 0.25, 0.5, 0.75)
HERE = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Choice:
    """Parts of the room that activations have, of the link that they take, of the room for
    parameters that are there when the step begins, and of the parameters updated on the device. In
    a `close` one activations share their part with what each op reads and each update takes
    (`stages.combine.whole.needs`)."""

    activations: float
    linked: float = 0.0
    there: float = 0.0
    here: float = 0.0
    close: bool = False


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


@dataclass(frozen=True)
class View:
    """How activations are planned: the problem, what polishes its sequences, and what opens them.
    `always` are the bytes of the room that they do not share; the `engine` solves the programs of
    drafts. What was found for budgets is here: the `sequences`, and the `bases`, also by the part
    of the link that they take."""

    problem: Problem
    polisher: Polisher
    opener: Opener
    always: int
    engine: Engine
    sequences: dict[int, Polished] = field(default_factory=dict)
    bases: dict[tuple[int, float], Base | None] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, close: bool) -> View:
        """Activations by themselves, or `close` together with what ops read and updates take."""
        problem = close_problem(task) if close else task.loose
        opened = replace(problem, storages=task.problem.storages) if close else task.problem
        updates = task.played(frozenset(), here=task.first_here, away=not task.first_here)
        always = updates.staging + updates.bench + task.kept_numbers if close else 0
        opener = Opener(task.graph, opened, SLICES)
        return cls(problem, Polisher(problem), opener, always, task.engine)

    def drafts(self, budget: int) -> list[list[int]]:
        """Sequences that integer programs say to start from for a budget."""
        return Moments(self.problem, Limits(engine=self.engine)).drafts(budget)

    @cached_property
    def sweep(self) -> list[Polished]:
        """Sequences for budgets from the least that one is known for up to that of keeping all."""
        return self.polisher.sweep([], least_peak(self.problem), 1, drafts=self.drafts)

    @property
    def least(self) -> Polished:
        """The sequence of the least peak."""
        return min(self.sweep, key=lambda each: (each.peak, each.seconds))


class Search:
    """Plans of one task; `views` may be those of another one that differs in its budget, or in
    which states stay on the device."""

    def __init__(self, task: Task, views: dict[bool, View] | None = None) -> None:
        self.task = task
        self.views = {} if views is None else views
        values = task.graph.values
        parts = {values[gradient.gradient].storage for gradient in task.graph.gradients}
        every = leaving(task.graph, task.loose)
        self.leaving = {storage: every[storage] for storage in every if storage not in parts}
        self.tried: dict[Choice, Found | None] = {}
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
        self.check()
        here = self.closest_choice.here
        begins = sorted({here, 0.0} if self.moves else {here})
        best = _fastest([self.look(Choice(part, 0.0, 0.25, h)) for h in begins for part in SHARES])
        if best is None:
            best = _fastest([self.look(Choice(part, 0.0, 0.0, here)) for part in CLOSER])
        if best is None and self.task.computes_away and here:
            best = _fastest([self.look(Choice(part, 0.0, 0.0, 0.0)) for part in SHARES])
        if best is None:
            best = self.closest()
        if best is None:
            raise ConfigError(self._refusal())
        return self.improved(best)

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
        """The fastest plan that is found from one by changing one choice at a time."""
        while True:
            nearby = [self.look(choice) for choice in _near(best.choice, self.moves)]
            better = _fastest([best, *nearby])
            if better is None or better.seconds >= best.seconds:
                return best
            best = better

    @property
    def moves(self) -> bool:
        """Whether it is looked for which updates are done in the other memory."""
        task, measured = self.task, self.task.measured
        spare = measured is None or measured.spare
        return task.computes_away and task.microbatches == 1 and spare

    @property
    def closest_choice(self) -> Choice:
        """That of hardly any room."""
        return Choice(1.0, here=float(self.task.first_here), close=True)

    def closest(self) -> Found | None:
        """A plan that has hardly anything on the device beside what an op or an update needs, where
        the budget is enough for it; what the estimate does not see is taken of activations."""
        choice = self.closest_choice
        for _ in range(TRIES):
            self.lacking = 0
            found = self.look(choice)
            if found is not None:
                return found
            if not self.lacking:
                break
            self.closest_bytes = self.closest_bytes or self.task.budget + self.lacking
            less = choice.activations - (self.lacking + 1) / max(self.task.room, 1)
            choice = replace(choice, activations=less)
        least, room = self.view(True).least.peak, self.task.room - self.view(True).always
        return self.look(replace(choice, activations=(least + 1) / room)) if least < room else None

    def look(self, choice: Choice) -> Found | None:
        """The plan of a choice, None where there is none."""
        if choice not in self.tried:
            self.tried[choice] = self._made(choice)
        return self.tried[choice]

    def _made(self, choice: Choice) -> Found | None:
        base = self._base(choice)
        if base is None:
            return None
        there, here = self._there(choice.there), self._here(base, choice.here)
        away = set(self.task.remote.values()) & self.task.updates.keys() - here
        updates = self.task.played(there, bool(here), away=bool(away))
        last = self._step(base, updates, here, choice.close)
        if last is None:
            return None
        several = self.task.microbatches - 1
        adding = None
        if several:
            adds = self.task.played(there, False, adds=True)
            adding = self._step(base, adds, frozenset(), choice.close)
            if adding is None:
                return None
        seconds = together(last, adding, several + 1).seconds
        return Found(choice, updates, last, adding, seconds)

    def _step(
        self, base: Base, updates: Updates, here: frozenset[int], close: bool
    ) -> Replay | None:
        """What the referee says of one microbatch, None where it does not fit."""
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
            steps = placed(base, moved, task.link)
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
        link = self.task.link
        if not self.away_bytes or self.lacking:
            return ""
        return (
            f"no plan is known that fits in {link.other}, which has {int(link.room)} bytes: in the "
            f"closest known there are {self.away_bytes} with what moves"
        )

    def _refusal(self) -> str:
        """What is said where no plan was found: which op stands in the way, or which memory."""
        task, problem = self.task, self.view(True).problem
        if self.crowded:
            return self.crowded
        least = self.view(True).least
        played = executions(problem, least.sequence, in_place=True, ceiling=least.ceiling)
        worst = max(played, key=lambda run: run.peak)
        total = task.fixed + self.view(True).always + worst.peak
        said = f"no plan is known that fits in {task.budget} bytes"
        if total <= task.budget:
            return f"{said}: in the closest known there are {self.closest_bytes} with what moves"
        name = name_of(task.graph, problem.nodes[worst.node])
        return f"{said}: in the smallest known there are {total} where {name} runs"

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

    def _base(self, choice: Choice) -> Base | None:
        bases = self.view(choice.close).bases
        key = (self.budget(choice.close, choice.activations), choice.linked)
        if key not in bases:
            steps = self._opened(choice)
            task = self.task
            bases[key] = (
                None
                if steps is None
                else base_of(task.graph, task.costs, steps, task.remote, task.link)
            )
        return bases[key]

    def _opened(self, choice: Choice) -> list[Step] | None:
        """The schedule of the activations alone; gradients do not stay in what it may take."""
        polished = self.polished(choice.close, choice.activations)
        fits = polished.peak <= polished.ceiling
        if choice.linked and (fits or choice.close):
            link = replace(self.task.link, bandwidth=choice.linked * self.task.link.bandwidth)
            return self._linked(polished, choice.close, link)
        if not fits:
            return None
        nodes = self.task.problem.nodes
        ops = [nodes[position].op for position in polished.sequence]
        opener = self.view(choice.close).opener
        return opener.of_actions(runs(self.task.problem, ops), True, polished.ceiling)

    def _linked(self, polished: Polished, close: bool, link: HostLink) -> list[Step] | None:
        problem, engine = self.view(close).problem, self.task.engine
        linker = Linker(problem, link, self.leaving, engine=engine)
        found = linker.plan(polished.ceiling, [polished.sequence], PRICES)
        if found is None or not found.stays:
            return None
        return self.view(close).opener.of_actions(linker.placer.actions(found), True, found.ceiling)

    def view(self, close: bool) -> View:
        """See `View`; made when it is first asked for."""
        if close not in self.views:
            self.views[close] = View.of(self.task, close)
        return self.views[close]

    def budget(self, close: bool, activations: float) -> int:
        """The bytes of a part of the room."""
        return int(activations * (self.task.room - self.view(close).always))

    def polished(self, close: bool, activations: float) -> Polished:
        """The sequence of a part of the room, or the least that is known above it."""
        view, budget = self.view(close), self.budget(close, activations)
        if budget not in view.sequences:
            polisher = view.polisher
            starts = [polisher.keep_all]
            if polisher.measure(polisher.keep_all)[0] > budget:
                starts = [*view.drafts(budget), *starts]
                fitting = [each for each in view.sweep if each.peak <= budget] if close else []
                fastest = min(fitting, key=lambda each: each.seconds, default=None)
                starts = starts if fastest is None else [fastest.sequence, *starts]
            view.sequences[budget] = polisher.refine(starts, budget)
        return view.sequences[budget]


def _fastest(found: Sequence[Found | None]) -> Found | None:
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.seconds, default=None)


def _near(choice: Choice, several: bool) -> Iterator[Choice]:
    """Choices that differ in one thing, where there are several also in what is updated where."""
    for step in FINER:
        for other in (choice.activations - step, choice.activations + step):
            if 0 < other < 1:
                yield replace(choice, activations=round(other, 3))
    for there in {*THERE, *(round(choice.there + step, 3) for step in (-0.1, -0.05, 0.05, 0.1))}:
        if 0 <= there < 1:
            yield replace(choice, there=there)
    for here in HERE if several else ():
        yield replace(choice, here=here)
    for linked in (0.0, *LINKS):
        yield replace(choice, linked=linked)
