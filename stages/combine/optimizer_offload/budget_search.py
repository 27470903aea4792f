"""Plans of a whole step for budgets as people write them: bytes, a share, the least."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tightfit.stages.combine.optimizer_offload.cycle_search import CycleSearch
from tightfit.stages.combine.optimizer_offload.min_memory import (
    OffloadTargetTooSmallError,
    check_min_memory,
)
from tightfit.stages.combine.optimizer_offload.plan import keep_all_bytes, total_device_bytes
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.search import (
    MAX_TRIES,
    OffloadSearch,
    OffloadSearchResult,
)
from tightfit.stages.combine.optimizer_offload.search_space import OffloadChoice
from tightfit.stages.combine.optimizer_offload.state_placement import (
    search_resident_parameters,
    search_resident_states,
)
from tightfit.util.budget import MIN_BUDGET, parse_budget
from tightfit.util.errors import ConfigError

MAX_BUDGET_RAISES = 3 * MAX_TRIES
"""How often the least budget is raised."""
MAX_HALVINGS, MAX_BYTE_STEPS = 6, 4
"""How often less is tried than the least that a plan is known for: halfway to what no plan goes
below, and by a byte."""


def plan_for_budget(
    task: OffloadProblem, written: str
) -> tuple[OffloadProblem, OffloadSearchResult]:
    """The task with a budget, and its plan: bytes of the device for everything, a share of what is
    not there all the time (100% has everything on the device, states too), or "min", the least that
    a plan is known for. Raises ConfigError where none is found."""
    if written == MIN_BUDGET:
        return plan_for_min_budget(task)
    sized = replace(task, budget=parse_total_bytes(task, written))
    check_min_memory(sized)
    search = OffloadSearch(sized)
    found = None
    if sized.overlaps_steps:
        search.check()
        found = CycleSearch(search).best()
        if found is not None and search.first(most=found.seconds) is None:
            return sized, found
    search, begun = search_resident_parameters(search, search.begun())
    own, single = search_resident_states(search, search.improve(begun))
    return (sized, found) if found and found.seconds <= single.seconds else (own, single)


def parse_total_bytes(task: OffloadProblem, written: str) -> int:
    """The bytes of a budget that is a size or a share; raises ConfigError where it is none."""
    staged = task.min_staging_bytes
    return parse_budget(written).total(task.fixed + staged, keep_all_bytes(task) + staged)


def plan_for_min_budget(task: OffloadProblem) -> tuple[OffloadProblem, OffloadSearchResult]:
    """The task with the least budget that a plan is known for, and the fastest plan within it.
    Where updates can be on the device or beside the offload target, both are tried. What a budget
    lacks, activations and what moves may take as well: activations with no more than they need are
    tried with each budget, too, and where none fits for long, steps double."""
    search = OffloadSearch(task)
    search.check()
    least = _MinBudgetSearch(search)
    for choice in search.tightest_choices:
        least.look(choice)
    if least.best is None:
        raise least.refusal
    lowest, found = _lower_budget(*least.best)
    # What is faster may take fewer bytes, too.
    fastest = lowest.improve(found)
    return replace(lowest.task, budget=total_device_bytes(lowest.task, fastest)), fastest


def _lower_budget(
    search: OffloadSearch, found: OffloadSearchResult
) -> tuple[OffloadSearch, OffloadSearchResult]:
    """A search whose budget is what its plan takes, the least for which one is found: it goes on
    halfway to what no plan goes below, and then a byte below the last one."""
    task, views = search.task, search.schedules.views
    needed = task.fixed + min(
        search.schedules.view(choice.view).needed for choice in search.tightest_choices
    )
    total, missed = total_device_bytes(task, found), needed - 1
    for number in range(MAX_HALVINGS + MAX_BYTE_STEPS):
        if total <= needed:
            break
        halfway = (missed + total) // 2 if number < MAX_HALVINGS else total - 1
        below = OffloadSearch(replace(task, budget=halfway), views)
        other = plan_in_min_memory(below)
        if other is not None:
            found, total = other, total_device_bytes(below.task, other)
        elif halfway == total - 1:
            break
        else:
            missed = halfway
    return OffloadSearch(replace(task, budget=total), views), found


def plan_in_min_memory(search: OffloadSearch) -> OffloadSearchResult | None:
    """A plan of hardly any room, of activations that wait on the device or in the offload
    target."""
    for choice in search.tightest_choices:
        if search.schedules.view(choice.view).needed > search.task.room:
            continue
        for linked in dict.fromkeys((0.0, search.task.link_shares[-1])):
            for look in (search.look, search.least):
                found = look(replace(choice, linked=linked))
                if found is not None:
                    return found
    return None


@dataclass
class _MinBudgetSearch:
    """The search for the least budget, as far as it is: the `best` plan with the search of its
    budget, the budgets that were `tried` in vain, and what is said where the offload target is
    `crowded`."""

    search: OffloadSearch
    best: tuple[OffloadSearch, OffloadSearchResult] | None = None
    tried: list[int] = field(default_factory=list)
    tier_overflow: list[OffloadTargetTooSmallError] = field(default_factory=list)

    @property
    def refusal(self) -> ConfigError:
        """What is said where there is no plan."""
        if self.tier_overflow:
            return self.tier_overflow[0]
        return ConfigError(
            f"no plan is known that fits in {min(self.tried):,} bytes, the least that were tried"
        )

    def look(self, choice: OffloadChoice) -> None:
        """Raises the budget from what a choice of hardly any room takes until there is a plan, or
        it is no better than the best."""
        task, view = self.search.task, self.search.schedules.view(choice.view)
        if self._is_too_much(task.fixed + view.needed):
            return
        budget = task.fixed + view.always + view.least.peak
        for number in range(MAX_BUDGET_RAISES):
            if self._is_too_much(budget):
                return
            sized = OffloadSearch(replace(task, budget=budget), self.search.schedules.views)
            found, lacking = _plan_or_missing_bytes(sized, choice)
            if found is not None:
                self.best = sized, found
                return
            self.tried.append(budget)
            if sized.tier_overflow:
                self.tier_overflow.append(sized.tier_overflow)
                return
            budget += max(lacking, 1) << max(number + 1 - MAX_TRIES, 0)

    def _is_too_much(self, budget: int) -> bool:
        return self.best is not None and budget >= self.best[0].task.budget


def _plan_or_missing_bytes(
    sized: OffloadSearch, choice: OffloadChoice
) -> tuple[OffloadSearchResult | None, int]:
    """The plan of a choice within its budget, activations with no more than they need among what
    is tried; where there is none, the fewest bytes that one lacked, as far as known."""
    lacking = 0
    for activations in (sized.look, sized.least):
        found = activations(choice)
        if found is not None:
            return found, 0
        lacking = min(lacking or sized.missing_bytes, sized.missing_bytes)
    return None, lacking
