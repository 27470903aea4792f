"""Plans with an optimiser that steps in their backward: what that takes, and which plan fits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.budget import LEAST, NO_BUDGET
from schemas.errors import ConfigError
from schemas.link import HostLink
from schemas.updates import LinkSpeed, UpdateCost, Updates, WholeStep
from tightfit.choices import ChosenPlan
from tightfit.settings import check_folder
from tightfit.variants import Variant, totals_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.route import Route


@dataclass(frozen=True)
class Updating:
    """An optimiser of a model's parameters as it is going to step in the backward: `costs` by path,
    the speed of the link, the bytes of staging and states, and whether a processor is left for
    updates in the slow memory; `source` says where the speed is from."""

    optimizer: str
    costs: dict[str, UpdateCost]
    speed: LinkSpeed
    count: int
    staging: int
    slow: int
    slow_memory: str
    spare: bool = True
    accumulates: bool = False
    source: str = ""

    def step(self, variant: Variant, plan: ChosenPlan) -> WholeStep:
        """What is predicted of a plan with the updates."""
        from schemas.costs import read_costs
        from schemas.graph import read_graph
        from schemas.schedule import read_schedule, schedule_link, write_schedule
        from schemas.store import header
        from stages.combine.whole.accumulating import accumulating
        from stages.combine.whole.backward import costs_by_value, in_backward
        from stages.replay.referee import replay

        graph, costs = read_graph(variant.graph), read_costs(variant.costs)
        path = plan.module.parent / "schedule.arrow"
        planned = read_schedule(path)
        link = schedule_link(path) or self.link(graph.device)
        updates = Updates(costs_by_value(graph, self.costs), self.speed, self.count)
        steps = in_backward(graph, planned, updates.costs)
        played = replay(graph, costs, steps, link=link, updates=updates)
        first = replay(graph, costs, steps, link=link, updates=replace(updates, first=True))
        adds = accumulating(graph, costs, steps, link, updates)
        digest = hashlib.sha256(updates.text().encode()).hexdigest()[:16]
        written = path.with_name(f"whole-{digest}.arrow")
        write_schedule(written, played.steps, header(variant.graph).digest, link, updates)
        fixed = plan.fixed
        before = fixed.there_before + self.staging
        accumulated = before + adds.most
        return WholeStep(
            optimizer=self.optimizer,
            total=accumulated if self.accumulates else before + max(played.peak, first.peak),
            parameters=fixed.parameters,
            buffers=fixed.buffers,
            inputs=fixed.inputs,
            staging=self.staging,
            peak=played.peak,
            first_peak=first.peak,
            accumulating_peak=adds.last,
            slow_memory=self.slow_memory,
            slow=self.slow,
            moved=sum(cost.states for cost in updates.costs.values()),
            seconds=played.seconds,
            waited=played.transfers.waited if played.transfers else 0.0,
            schedule=str(written),
            gradients=adds.gradients,
            opening_peak=adds.opening,
            adding_peak=adds.adding,
            accumulating_total=accumulated,
        )

    def holding(self, variant: Variant, plan: ChosenPlan, whole: WholeStep) -> str:
        """The parts of a whole step's total, the largest first, as a clause: what is there before
        it, and what its largest moment takes."""
        from schemas.costs import read_costs
        from schemas.graph import read_graph
        from schemas.schedule import read_schedule, schedule_link, schedule_updates
        from stages.combine.holding import holding_whole
        from stages.replay.referee import replay

        graph, costs = read_graph(variant.graph), read_costs(variant.costs)
        path, adds = Path(whole.schedule), self.accumulates
        steps, link, updates = read_schedule(path), schedule_link(path), schedule_updates(path)
        assert updates is not None
        played = max(
            (
                replay(graph, costs, steps, adds, link, replace(updates, first=first))
                for first in (False, True)
            ),
            key=lambda each: each.peak,
        )
        sums = whole.gradients if adds else 0
        return holding_whole(graph, played, plan.fixed, whole.total, whole.staging, sums)

    def link(self, device: str) -> HostLink:
        """The link of states, as it was measured."""
        each = min(self.speed.both)
        return HostLink(
            each,
            self.speed.latency,
            False,
            device=device,
            to=self.slow_memory,
            source=self.source,
        )


def measured(
    route: Route,
    graph: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None,
    away: bool = False,
) -> Updating:
    """What the updates of an optimiser take, also in the memory of parameters that are `away`;
    raises ConfigError where it cannot step in the backward."""
    from schemas.graph import read_graph
    from stages.device.optimiser import PIECE_BYTES, check
    from stages.device.pieces import pieces_of, states_of
    from stages.device.updating import STAGING
    from stages.profile.kept_links import kept_link
    from stages.profile.updates import has_spare, measure_updates

    try:
        check(optimizer)
    except RuntimeError as error:
        raise ConfigError(f"optimizer: {error}") from error
    kind, groups = type(optimizer), optimizer.param_groups
    paths = _paths(read_graph(graph), model)
    parameters = [(p, group) for group in groups for p in group["params"]]
    names = [paths.get(id(parameter), "") for parameter, _ in parameters]
    counts = [states_of(kind, group) for _, group in parameters]
    pieces = [
        piece
        for own in pieces_of([parameter for parameter, _ in parameters], counts, PIECE_BYTES)
        for piece in own
    ]
    device = parameters[0][0].device
    folder = None if disk is None else str(disk)
    try:
        costs = measure_updates(kind, groups, names, PIECE_BYTES, folder, beside=away)
    except RuntimeError as error:
        raise ConfigError(f"plan: disk: {error}") from error
    kept = kept_link(route.store, str(device), disk)
    return Updating(
        optimizer=kind.__name__,
        costs=costs,
        speed=kept.speed,
        count=STAGING,
        staging=STAGING * max(piece.size for piece in pieces),
        slow=sum(piece.size for piece in pieces),
        slow_memory="disk" if device.type == "cpu" else "host",
        spare=has_spare(device),
        source=kept.said,
    )


def in_backward(
    optimizer: torch.optim.Optimizer, disk: Path | str | None = None
) -> torch.optim.Optimizer:
    """The optimiser that takes the place of another one, for any module: it updates each parameter
    in the backward, with its states in a file of the folder `disk`, or in the host's memory for
    parameters on a GPU. The states of `optimizer` move.

    Raises ConfigError where it cannot step in the backward, or the disk has no room, or is none.
    """
    from stages.device.optimiser import in_backward

    check_folder("in_backward", disk)
    try:
        return in_backward(optimizer, disk)
    except RuntimeError as error:
        raise ConfigError(f"optimizer: {error}") from error


def _paths(graph: Any, model: nn.Module) -> dict[int, str]:
    """The paths of the parameters that a graph has gradients of, by the id of the tensor."""
    found = {}
    for gradient in graph.gradients:
        value = graph.values[gradient.value]
        if value.kind == "parameter":
            found[id(model.get_parameter(value.path))] = value.path
    return found


def planned_whole(
    route: Route, variant: Variant, updating: Updating, written: str, total: int | None = None
) -> tuple[ChosenPlan, WholeStep]:
    """The fastest plan whose step with all updates is within a budget, and what is predicted of it.

    A budget in bytes counts all of the step, where the optimiser `accumulates` with gradients of
    several microbatches, too. A share chooses a plan as it does without an optimiser; `total` are
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
        return _said(*_least(variant, made))
    limit = variant.bytes_of(written)
    tried = _tried(_sizes(variant), limit, made)
    fitting = [found for found in tried if found[1].total <= limit]
    if fitting:
        return _said(*fitting[-1])
    # A budget in bytes asks for the strategy's own plans alone; the least is one of all.
    variant = Variant.with_frontier(route, variant.built, variant.graph, variant.costs, LEAST)
    least = min(*tried, _least(variant, made), key=_size)
    if least[1].total <= limit:
        return _said(*least)
    raise ConfigError(
        f"no plan fits in {limit:,} bytes: the smallest budget known to work with all updates is "
        f"{least[1].total:,} bytes; at the peak of the step these are "
        f"{updating.holding(variant, *least)}"
    )


Whole = tuple[ChosenPlan, WholeStep]


def _least(variant: Variant, made: Callable[[str], Whole]) -> Whole:
    """The plan whose whole step takes the fewest bytes, of those that are tried."""
    sizes, smallest = _sizes(variant), variant.bytes_of(LEAST)
    tried = _tried(sizes, 0, made)
    if smallest not in sizes:
        tried.append(made(str(smallest)))
    return min(tried, key=_size)


def _size(found: Whole) -> tuple[int, float]:
    return found[1].total, found[1].seconds


def _said(plan: ChosenPlan, whole: WholeStep) -> tuple[ChosenPlan, WholeStep]:
    """A plan whose sentence tells the bytes of the step with all updates."""
    object.__setattr__(
        plan,
        "sentence",
        f"{plan.sentence}; with all updates the step takes {whole.total:,} bytes in all, which is "
        "what a budget in bytes counts",
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
