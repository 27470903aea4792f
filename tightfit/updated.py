"""Which plan fits with an optimiser that steps in its backward, and which states stay then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tightfit.choices import ChosenPlan
from tightfit.route import Route
from tightfit.schemas.actions import Optimise
from tightfit.schemas.budget import LEAST, NO_BUDGET
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.updates import WholeStep
from tightfit.variants import Variant, totals_of
from tightfit.whole import Updating

SMALL = 1 << 20
"""States of parameters of fewer bytes stay on the device before others do."""
TRIES = 4
"""How often a plan is looked for in as many bytes as the least so far takes."""


def planned_whole(
    route: Route, variant: Variant, updating: Updating, written: str, total: int | None = None
) -> tuple[ChosenPlan, WholeStep]:
    """The fastest plan whose step with all updates is within a budget, and what is predicted of it.

    A budget in bytes counts all of the step, where gradients of several microbatches accumulate
    with these, too. A share chooses a plan as it does without an optimiser; `total` are
    the bytes of a share that is another step's. Raises ConfigError, with what the smallest plan
    takes, where none fits.
    """

    def made(budget: str) -> tuple[ChosenPlan, WholeStep]:
        plan = variant.made(route, budget)
        return plan, updating.step(variant, plan)

    if written.endswith("%"):
        return _said(*made(written if total is None else str(total)))
    if written == NO_BUDGET:
        return _said(*made(written))
    if written == LEAST:
        return _said(*_least(route, variant, updating))
    limit = variant.bytes_of(written)
    tried = _tried(_sizes(variant), limit, made)
    fitting = [found for found in tried if found[1].total <= limit]
    if fitting:
        return _said(*_with_resident(variant, updating, *fitting[-1], limit))
    # A budget in bytes asks for the strategy's own plans alone; the least is one of all.
    variant = Variant.with_frontier(route, variant.built, variant.graph, variant.costs, LEAST)
    least = min(*tried, _least(route, variant, updating), key=_size)
    if least[1].total <= limit:
        return _said(*_with_resident(variant, updating, *least, limit))
    raise ConfigError(
        f"no plan fits in {limit:,} bytes: the smallest budget known to work with all updates is "
        f"{least[1].total:,} bytes; at the peak of the step these are "
        f"{updating.holding(variant, *least)}"
    )


Whole = tuple[ChosenPlan, WholeStep]


def _least(route: Route, variant: Variant, updating: Updating) -> Whole:
    """The plan whose whole step takes the fewest bytes: that of the frontier, what is found for as
    many bytes as that one takes without updates, or what is found for the least so far."""

    def made(budget: str, search: bool = True) -> Whole:
        plan = (
            variant.made(route, budget)
            if search
            else variant.made_of(route, *variant.chosen(route, budget, search=False))
        )
        return plan, updating.step(variant, plan)

    least, size = min(_totals(variant, updating), key=lambda each: (each[0], -each[1]))
    best = made(str(size))
    limit = least
    for _ in range(TRIES):
        best = min(best, *_tried(_sizes(variant), limit, made), key=_size)
        if best[1].total >= limit:
            break
        limit = best[1].total
    return best if best[1].total <= least else made(str(size), search=False)


def _totals(variant: Variant, updating: Updating) -> Iterator[tuple[int, int]]:
    """The bytes of the whole step of each plan of a frontier, and those of the plan without
    updates, as budgets count them."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph import read_graph
    from tightfit.stages.combine.fixed import fixed_bytes
    from tightfit.stages.combine.schedule.opening import Opener
    from tightfit.stages.replay.condense import condense

    graph, costs, frontier = read_graph(variant.graph), read_costs(variant.costs), variant.frontier
    opener, link = Opener(graph, condense(graph, costs)), frontier.link
    before = fixed_bytes(graph).there_before + updating.staging
    sizes = totals_of(variant.graph, variant.costs, frontier)
    for size, point in zip(sizes, frontier.points, strict=True):
        predicted = updating.predicted(
            graph, costs, opener.opened(point), link or updating.link(graph.device)
        )
        yield before + predicted.most(updating.gradients.accumulate), size


def _with_resident(
    variant: Variant, updating: Updating, plan: ChosenPlan, whole: WholeStep, limit: int
) -> Whole:
    """A plan with its whole step where the states of some parameters stay on the device, in what a
    limit leaves: these take no link. It is the one without them where that is predicted faster."""
    from tightfit.schemas.graph import read_graph
    from tightfit.schemas.schedule import read_schedule
    from tightfit.stages.combine.whole.backward import costs_by_value
    from tightfit.stages.combine.whole.resident import staying

    graph = read_graph(variant.graph)
    costs = costs_by_value(graph, updating.costs)
    steps = read_schedule(Path(whole.schedule))
    order = [step.action.value for step in steps if isinstance(step.action, Optimise)]
    states = {value: costs[value].states for value in order if costs[value].states}
    small = {v for v in states if graph.storages[graph.values[v].storage] < SMALL}
    stay = staying(states, small, limit - whole.total)
    if not stay:
        return plan, whole
    other = updating.step(variant, plan, stay)
    return plan, other if other.seconds <= whole.seconds else whole


def _size(found: Whole) -> tuple[int, float]:
    return found[1].total, found[1].seconds


def _said(plan: ChosenPlan, whole: WholeStep) -> tuple[ChosenPlan, WholeStep]:
    """A plan whose sentence tells the bytes of the step with all updates."""
    stay = f", {whole.resident:,} of them for states that stay there" if whole.resident else ""
    object.__setattr__(
        plan,
        "sentence",
        f"{plan.sentence}; with all updates the step takes {whole.total:,} bytes{stay}, "
        "which is what a budget in bytes counts",
    )
    return plan, whole


def _sizes(variant: Variant) -> list[int]:
    """The bytes of each plan of a frontier, as budgets count them, from the least."""
    return sorted(set(totals_of(variant.graph, variant.costs, variant.frontier)))


def _tried(
    sizes: list[int], limit: int, made: Callable[[str], tuple[ChosenPlan, WholeStep]]
) -> list[tuple[ChosenPlan, WholeStep]]:
    """The plans that are made on the way to the largest size whose whole step is within a limit:
    the last of them that is within it is that one, and where none is they end with the least size.
    Sizes that are twice as many take one more."""
    tried = []
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        tried.append(made(str(sizes[middle])))
        if tried[-1][1].total <= limit:
            low = middle + 1
        else:
            high = middle
    return tried
