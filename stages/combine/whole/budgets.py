"""Plans of a whole step for budgets as people write them: bytes, a share, the least."""

from __future__ import annotations

from dataclasses import replace

from schemas.budget import LEAST, parse_budget
from schemas.errors import ConfigError
from stages.combine.whole.choice import Choice
from stages.combine.whole.needs import check_needs
from stages.combine.whole.plans import everything
from stages.combine.whole.resident import with_resident_states
from stages.combine.whole.search import TRIES, Found, Search
from stages.combine.whole.task import Task

MORE_TRIES = 3 * TRIES
"""How often the least budget is raised."""


def planned(task: Task, written: str) -> tuple[Task, Found]:
    """The task with a budget, and its plan: bytes of the device for everything, a share of what is
    not there all the time (100% has everything on the device, states too), or "min", the least that
    a plan is known for. Raises ConfigError where none is found."""
    if written == LEAST:
        return smallest(task)
    sized = replace(task, budget=total_of(task, written))
    check_needs(sized)
    search = Search(sized)
    return with_resident_states(search, search.best())


def total_of(task: Task, written: str) -> int:
    """The bytes of a budget that is a size or a share; raises ConfigError where it is none."""
    staged = task.always_staged
    return parse_budget(written).total(task.fixed + staged, everything(task) + staged)


def smallest(task: Task) -> tuple[Task, Found]:
    """The task with the least budget that a plan is known for, and the fastest plan within it.
    Where updates can be on the device or beside the other memory, both are tried. What a budget
    lacks, activations and what moves may take as well: activations with no more than they need are
    tried with each budget, too, and where none fits for long, steps double."""
    search = Search(task)
    search.check()
    tried: list[int] = []
    crowded: list[str] = []
    best: tuple[Search, Found] | None = None
    for choice in search.closest_choices:
        most = None if best is None else best[0].task.budget
        best = _smallest(search, choice, most, tried, crowded) or best
    if best is None:
        raise ConfigError(
            crowded[0]
            if crowded
            else f"no plan is known that fits in {min(tried)} bytes, the least that were tried"
        )
    return best[0].task, best[0].improved(best[1])


def _smallest(
    search: Search, choice: Choice, most: int | None, tried: list[int], crowded: list[str]
) -> tuple[Search, Found] | None:
    """The least budget, below the `most` where there is one, that a choice of hardly any room is a
    plan for; adds those that were `tried`, and what is said where the other memory is `crowded`."""
    task, view = search.task, search.view(choice.view)
    if most is not None and task.fixed + view.needed >= most:
        return None
    budget = task.fixed + view.always + view.least.peak
    for number in range(MORE_TRIES):
        if most is not None and budget >= most:
            return None
        sized = Search(replace(task, budget=budget), search.views)
        lacking = 0
        for activations in (sized.look, sized.least):
            found = activations(choice)
            if found is not None:
                return sized, found
            lacking = min(lacking or sized.lacking, sized.lacking)
        tried.append(budget)
        if sized.crowded:
            crowded.append(sized.crowded)
            return None
        budget += max(lacking, 1) << max(number + 1 - TRIES, 0)
    return None
