"""Plans of a whole step for budgets as people write them: bytes, a share, the least."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tightfit.schemas.budget import LEAST, parse_budget
from tightfit.schemas.errors import ConfigError
from tightfit.stages.combine.whole.choice import LINKS, Choice
from tightfit.stages.combine.whole.kept import with_states_kept
from tightfit.stages.combine.whole.needs import check_needs
from tightfit.stages.combine.whole.plans import everything, total_bytes
from tightfit.stages.combine.whole.resident import with_resident_states
from tightfit.stages.combine.whole.search import TRIES, Found, Search
from tightfit.stages.combine.whole.task import Task

MORE_TRIES = 3 * TRIES
"""How often the least budget is raised."""
HALVINGS, FURTHER_DOWN = 6, 4
"""How often less is tried than the least that a plan is known for: halfway to what no plan goes
below, and by a byte."""


def planned(task: Task, written: str) -> tuple[Task, Found]:
    """The task with a budget, and its plan: bytes of the device for everything, a share of what is
    not there all the time (100% has everything on the device, states too), or "min", the least that
    a plan is known for. Raises ConfigError where none is found."""
    if written == LEAST:
        return smallest(task)
    sized = replace(task, budget=total_of(task, written))
    check_needs(sized)
    search = Search(sized)
    search, begun = with_states_kept(search, search.begun())
    return with_resident_states(search, search.improved(begun))


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
    least = _Least(search)
    for choice in search.closest_choices:
        least.look(choice)
    if least.best is None:
        raise ConfigError(least.refusal)
    lowest, found = _lowest(*least.best)
    # What is faster may take fewer bytes, too.
    fastest = lowest.improved(found)
    return replace(lowest.task, budget=total_bytes(lowest.task, fastest)), fastest


def _lowest(search: Search, found: Found) -> tuple[Search, Found]:
    """A search whose budget is what its plan takes, the least for which one is found: it goes on
    halfway to what no plan goes below, and then a byte below the last one."""
    task, views = search.task, search.bases.views
    needed = task.fixed + min(
        search.bases.view(choice.view).needed for choice in search.closest_choices
    )
    total, missed = total_bytes(task, found), needed - 1
    for number in range(HALVINGS + FURTHER_DOWN):
        if total <= needed:
            break
        halfway = (missed + total) // 2 if number < HALVINGS else total - 1
        below = Search(replace(task, budget=halfway), views)
        other = hardly_any_room(below)
        if other is not None:
            found, total = other, total_bytes(below.task, other)
        elif halfway == total - 1:
            break
        else:
            missed = halfway
    return Search(replace(task, budget=total), views), found


def hardly_any_room(search: Search) -> Found | None:
    """A plan of hardly any room, of activations that wait on the device or in the other memory."""
    for choice in search.closest_choices:
        if search.bases.view(choice.view).needed > search.task.room:
            continue
        for linked in (0.0, LINKS[-1]):
            for look in (search.look, search.least):
                found = look(replace(choice, linked=linked))
                if found is not None:
                    return found
    return None


@dataclass
class _Least:
    """The search for the least budget, as far as it is: the `best` plan with the search of its
    budget, the budgets that were `tried` in vain, and what is said where the other memory is
    `crowded`."""

    search: Search
    best: tuple[Search, Found] | None = None
    tried: list[int] = field(default_factory=list)
    crowded: list[str] = field(default_factory=list)

    @property
    def refusal(self) -> str:
        """What is said where there is no plan."""
        if self.crowded:
            return self.crowded[0]
        return f"no plan is known that fits in {min(self.tried):,} bytes, the least that were tried"

    def look(self, choice: Choice) -> None:
        """Raises the budget from what a choice of hardly any room takes until there is a plan, or
        it is no better than the best."""
        task, view = self.search.task, self.search.bases.view(choice.view)
        if self._is_too_much(task.fixed + view.needed):
            return
        budget = task.fixed + view.always + view.least.peak
        for number in range(MORE_TRIES):
            if self._is_too_much(budget):
                return
            sized = Search(replace(task, budget=budget), self.search.bases.views)
            found, lacking = _within(sized, choice)
            if found is not None:
                self.best = sized, found
                return
            self.tried.append(budget)
            if sized.crowded:
                self.crowded.append(sized.crowded)
                return
            budget += max(lacking, 1) << max(number + 1 - TRIES, 0)

    def _is_too_much(self, budget: int) -> bool:
        return self.best is not None and budget >= self.best[0].task.budget


def _within(sized: Search, choice: Choice) -> tuple[Found | None, int]:
    """The plan of a choice within its budget, activations with no more than they need among what
    is tried; where there is none, the fewest bytes that one lacked, as far as known."""
    lacking = 0
    for activations in (sized.look, sized.least):
        found = activations(choice)
        if found is not None:
            return found, 0
        lacking = min(lacking or sized.lacking, sized.lacking)
    return None, lacking
