"""Which plan fits with an optimizer that steps in its backward, and which states stay then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tightfit.api.backward_optimizer import OptimizerSetup
from tightfit.api.input_specialization import InputSpecialization, frontier_totals
from tightfit.api.plan_result import ChosenPlan
from tightfit.api.stage_runner import StageRunner
from tightfit.schemas.actions import UpdateOnDevice
from tightfit.schemas.optimizer_plan import OptimizerStepPrediction
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET
from tightfit.util.errors import ConfigError

SMALL_STATE_BYTES = 1 << 20
"""States of parameters of fewer bytes stay on the device before others do."""
MAX_SEARCH_ROUNDS = 4
"""How often a plan is looked for in as many bytes as the least so far takes."""


def plan_optimizer_step(
    runner: StageRunner,
    variant: InputSpecialization,
    updating: OptimizerSetup,
    written: str,
    total: int | None = None,
) -> tuple[ChosenPlan, OptimizerStepPrediction]:
    """The fastest plan whose step with all updates is within a budget, and what is predicted of it.

    A budget in bytes counts all of the step, where gradients of several microbatches accumulate
    with these, too. A share chooses a plan as it does without an optimizer; `total` are
    the bytes of a share that is another step's. Raises ConfigError, with what the smallest plan
    takes, where none fits.
    """

    def made(budget: str) -> tuple[ChosenPlan, OptimizerStepPrediction]:
        plan = variant.made(runner, budget)
        return plan, updating.step(variant, plan)

    if written.endswith("%"):
        return _state_step_bytes(*made(written if total is None else str(total)))
    if written == NO_BUDGET:
        return _state_step_bytes(*made(written))
    if written == MIN_BUDGET:
        return _state_step_bytes(*_smallest_step(runner, variant, updating))
    limit = variant.bytes_of(written)
    tried = _bisect_plans(_plan_sizes(variant), limit, made)
    fitting = [found for found in tried if found[1].total <= limit]
    if fitting:
        return _state_step_bytes(*_keep_states_resident(variant, updating, *fitting[-1], limit))
    # A budget in bytes asks for the strategy's own plans alone; the least is one of all.
    variant = InputSpecialization.with_frontier(
        runner, variant.built, variant.graph, variant.costs, MIN_BUDGET
    )
    least = min(*tried, _smallest_step(runner, variant, updating), key=_step_size)
    if least[1].total <= limit:
        return _state_step_bytes(*_keep_states_resident(variant, updating, *least, limit))
    raise ConfigError(
        f"no plan fits in {limit:,} bytes: the smallest budget known to work with all updates is "
        f"{least[1].total:,} bytes; at the peak of the step these are "
        f"{updating.holding(variant, *least)}"
    )


PlannedStep = tuple[ChosenPlan, OptimizerStepPrediction]


def _smallest_step(
    runner: StageRunner, variant: InputSpecialization, updating: OptimizerSetup
) -> PlannedStep:
    """The plan whose whole step takes the fewest bytes: that of the frontier, what is found for as
    many bytes as that one takes without updates, or what is found for the least so far."""

    def made(budget: str, search: bool = True) -> PlannedStep:
        plan = (
            variant.made(runner, budget)
            if search
            else variant.package_plan(runner, *variant.chosen(runner, budget, search=False))
        )
        return plan, updating.step(variant, plan)

    least, size = min(_step_totals(variant, updating), key=lambda each: (each[0], -each[1]))
    best = made(str(size))
    limit = least
    for _ in range(MAX_SEARCH_ROUNDS):
        best = min(best, *_bisect_plans(_plan_sizes(variant), limit, made), key=_step_size)
        if best[1].total >= limit:
            break
        limit = best[1].total
    return best if best[1].total <= least else made(str(size), search=False)


def _step_totals(
    variant: InputSpecialization, updating: OptimizerSetup
) -> Iterator[tuple[int, int]]:
    """The bytes of the whole step of each plan of a frontier, and those of the plan without
    updates, as budgets count them."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.combine.lowering.schedule import ScheduleLowering
    from tightfit.stages.combine.memory_budget import baseline_bytes
    from tightfit.stages.simulate.planning_graph import build_planning_graph

    graph, costs, frontier = read_graph(variant.graph), read_costs(variant.costs), variant.frontier
    opener, link = ScheduleLowering(graph, build_planning_graph(graph, costs)), frontier.link
    before = baseline_bytes(graph).bytes_before_step + updating.staging
    sizes = frontier_totals(variant.graph, variant.costs, frontier)
    for size, point in zip(sizes, frontier.points, strict=True):
        predicted = updating.predicted(
            graph, costs, opener.opened(point), link or updating.link(graph.device)
        )
        yield before + predicted.most(updating.gradients.accumulate), size


def _keep_states_resident(
    variant: InputSpecialization,
    updating: OptimizerSetup,
    plan: ChosenPlan,
    whole: OptimizerStepPrediction,
    limit: int,
) -> PlannedStep:
    """A plan with its whole step where the states of some parameters stay on the device, in what a
    limit leaves: these take no link. It is the one without them where that is predicted faster."""
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.schedule import read_schedule
    from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import costs_by_value
    from tightfit.stages.combine.optimizer_offload.state_placement import select_resident_states

    graph = read_graph(variant.graph)
    costs = costs_by_value(graph, updating.costs)
    steps = read_schedule(Path(whole.schedule))
    order = [step.action.value for step in steps if isinstance(step.action, UpdateOnDevice)]
    states = {value: costs[value].states for value in order if costs[value].states}
    small = {v for v in states if graph.storages[graph.values[v].storage] < SMALL_STATE_BYTES}
    stay = select_resident_states(states, small, limit - whole.total)
    if not stay:
        return plan, whole
    other = updating.step(variant, plan, stay)
    return plan, other if other.seconds <= whole.seconds else whole


def _step_size(found: PlannedStep) -> tuple[int, float]:
    return found[1].total, found[1].seconds


def _state_step_bytes(
    plan: ChosenPlan, whole: OptimizerStepPrediction
) -> tuple[ChosenPlan, OptimizerStepPrediction]:
    """A plan whose sentence tells the bytes of the step with all updates."""
    stay = f", {whole.resident:,} of them for states that stay there" if whole.resident else ""
    said = (
        f"with all updates the step takes {whole.total:,} bytes{stay}, which is what a budget in "
        "bytes counts"
    )
    return plan.with_note(said), whole


def _plan_sizes(variant: InputSpecialization) -> list[int]:
    """The bytes of each plan of a frontier, as budgets count them, from the least."""
    return sorted(set(frontier_totals(variant.graph, variant.costs, variant.frontier)))


def _bisect_plans(
    sizes: list[int], limit: int, made: Callable[[str], tuple[ChosenPlan, OptimizerStepPrediction]]
) -> list[tuple[ChosenPlan, OptimizerStepPrediction]]:
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
