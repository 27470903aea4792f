"""What plans of a whole step start from: the schedule of the activations alone, for a part of the
room and of the link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from tightfit.schemas.cores import usable_cores
from tightfit.schemas.link import HostLink
from tightfit.schemas.schedule import Step
from tightfit.stages.combine.polish.searcher import Polished
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.schedule.leaving import leaving
from tightfit.stages.combine.transfers.search import PRICES, Linker
from tightfit.stages.combine.whole.base import Base, base_of
from tightfit.stages.combine.whole.choice import Choice, ViewKey
from tightfit.stages.combine.whole.task import Task
from tightfit.stages.combine.whole.view import View

BaseKey = tuple[ViewKey, int, float]
"""How activations are planned, their bytes, and the part of the link that they take."""


class Bases:
    """Those of a task; the `views` hold what was found before, also for other tasks."""

    def __init__(self, task: Task, views: dict[ViewKey, View]) -> None:
        self.task = task
        self.views = views
        values = task.graph.values
        parts = {values[gradient.gradient].storage for gradient in task.graph.gradients}
        every = leaving(task.graph, task.loose)
        self.leaving = {storage: every[storage] for storage in every if storage not in parts}

    @contextmanager
    def making(self, choices: Iterable[Choice]) -> Iterator[Callable[[Choice], None]]:
        """Threads, on which nothing depends, make those of some choices meanwhile: first sequences,
        one for each number of bytes, then what these send. What is given waits for that of one."""
        missing = {self.key(choice): choice for choice in choices if not self._is_known(choice)}
        if len(missing) < 2:
            yield lambda choice: None
            return
        with ThreadPoolExecutor(usable_cores()) as pool:
            sizes = {(view, budget): choice for (view, budget, _), choice in missing.items()}
            sequences = {
                key: pool.submit(self.polished, choice.view, choice.activations)
                for key, choice in sizes.items()
            }

            def make(choice: Choice) -> None:
                sequences[self.key(choice)[:2]].result()
                self.base(choice)

            begun = {key: pool.submit(make, choice) for key, choice in missing.items()}

            def wait(choice: Choice) -> None:
                if self.key(choice) in begun:
                    begun[self.key(choice)].result()

            try:
                yield wait
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def key(self, choice: Choice) -> BaseKey:
        """What the base of a choice is made by."""
        return choice.view, self.budget(choice.view, choice.activations), choice.linked

    def _is_known(self, choice: Choice) -> bool:
        return self.key(choice)[1:] in self.view(choice.view).bases

    def base(self, choice: Choice) -> Base | None:
        """What the plan of a choice starts from, None where its activations do not fit."""
        bases, key = self.view(choice.view).bases, self.key(choice)[1:]
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
