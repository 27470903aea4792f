"""What plans of a whole step start from: the schedule of the activations alone, for a part of the
room and of the link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from schemas.cores import usable_cores
from schemas.link import HostLink
from schemas.schedule import Step
from stages.combine.polish.searcher import Polished
from stages.combine.schedule.executions import runs
from stages.combine.schedule.leaving import leaving
from stages.combine.transfers.search import PRICES, Linker
from stages.combine.whole.base import Base, base_of
from stages.combine.whole.choice import Choice, ViewKey
from stages.combine.whole.task import Task
from stages.combine.whole.view import View


class Bases:
    """Those of a task; the `views` hold what was found before, also for other tasks."""

    def __init__(self, task: Task, views: dict[ViewKey, View]) -> None:
        self.task = task
        self.views = views
        values = task.graph.values
        parts = {values[gradient.gradient].storage for gradient in task.graph.gradients}
        every = leaving(task.graph, task.loose)
        self.leaving = {storage: every[storage] for storage in every if storage not in parts}

    def make(self, choices: Iterable[Choice]) -> None:
        """Makes those of some choices by several threads, on which none depends: first sequences,
        one for each number of bytes, then what these send."""
        sizes: dict[tuple[ViewKey, int], Choice] = {}
        bases: dict[tuple[ViewKey, int, float], Choice] = {}
        for choice in choices:
            size = choice.view, self.budget(choice.view, choice.activations)
            sizes[size] = bases[*size, choice.linked] = choice
        if len(bases) < 2:
            return
        with ThreadPoolExecutor(usable_cores()) as pool:
            _all(pool, lambda choice: self.polished(choice.view, choice.activations), sizes)
            _all(pool, self.base, bases)

    def base(self, choice: Choice) -> Base | None:
        """What the plan of a choice starts from, None where its activations do not fit."""
        bases = self.view(choice.view).bases
        key = (self.budget(choice.view, choice.activations), choice.linked)
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
        polished = self.polished(choice.view, choice.activations)
        fits = polished.peak <= polished.ceiling
        if choice.linked and (fits or choice.close):
            link = replace(self.task.link, bandwidth=choice.linked * self.task.link.bandwidth)
            return self._linked(polished, choice.view, link)
        if not fits:
            return None
        nodes = self.task.problem.nodes
        ops = [nodes[position].op for position in polished.sequence]
        opener = self.view(choice.view).opener
        return opener.of_actions(runs(self.task.problem, ops), True, polished.ceiling)

    def _linked(self, polished: Polished, key: ViewKey, link: HostLink) -> list[Step] | None:
        problem, engine = self.view(key).problem, self.task.engine
        linker = Linker(problem, link, self.leaving, engine=engine)
        found = linker.plan(polished.ceiling, [polished.sequence], PRICES)
        if found is None or not found.stays:
            return None
        return self.view(key).opener.of_actions(linker.placer.actions(found), True, found.ceiling)

    def view(self, key: ViewKey) -> View:
        """See `View`; made when it is first asked for."""
        if key not in self.views:
            self.views[key] = View.of(self.task, key)
        return self.views[key]

    def budget(self, key: ViewKey, activations: float) -> int:
        """The bytes of a part of the room."""
        return int(activations * (self.task.room - self.view(key).always))

    def polished(self, key: ViewKey, activations: float) -> Polished:
        """The sequence of a part of the room, or the least that is known above it."""
        view, close, budget = self.view(key), key[0], self.budget(key, activations)
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


def _all(
    pool: ThreadPoolExecutor, make: Callable[[Choice], object], choices: Mapping[Any, Choice]
) -> None:
    """Makes something of each choice; where that ends early, what has not begun is left."""
    try:
        for made in [pool.submit(make, choice) for choice in choices.values()]:
            made.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
