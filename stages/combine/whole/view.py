"""How the activations of a whole step are planned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from tightfit.schemas.cores import usable_cores
from tightfit.schemas.engines import Engine
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.bounds import least_peak
from tightfit.stages.combine.moment.deciding import MomentsOfMany
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.polish.polisher import Polisher
from tightfit.stages.combine.polish.searcher import Polished
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.combine.whole.base import Base
from tightfit.stages.combine.whole.choice import ViewKey
from tightfit.stages.combine.whole.needs import close_problem
from tightfit.stages.combine.whole.task import Task

SLICES = 1024
"""Gradients are handed over in about so many parts: each can leave as soon as it is whole."""


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
    def of(cls, task: Task, key: ViewKey) -> View:
        """Activations by themselves, or close together with what ops read and updates take, which
        the device does or not."""
        close, here = key
        problem = close_problem(task, here) if close else task.loose
        opened = replace(problem, storages=task.problem.storages) if close else task.problem
        updates = task.played(frozenset(), here=here, away=not here)
        always = updates.staging + updates.bench + task.kept_numbers if close else 0
        opener = Opener(task.graph, opened, SLICES)
        return cls(problem, Polisher(problem), opener, always, task.engine)

    def drafts(self, budget: int) -> list[list[int]]:
        """Sequences that integer programs say to start from for a budget."""
        return self.moments.drafts(budget)

    @cached_property
    def moments(self) -> MomentsOfMany:
        """The integer programs of the problem."""
        return MomentsOfMany(self.problem, Limits(engine=self.engine))

    @cached_property
    def sweep(self) -> list[Polished]:
        """Sequences for budgets from the least that one is known for up to that of keeping all;
        they do not depend on how many threads search."""
        return self.polisher.sweep([], least_peak(self.problem), usable_cores(), drafts=self.drafts)

    @cached_property
    def needed(self) -> int:
        """Bytes of the room that no sequence goes below."""
        return self.always + least_peak(self.problem)

    @property
    def least(self) -> Polished:
        """The sequence of the least peak."""
        return min(self.sweep, key=lambda each: (each.peak, each.seconds))
