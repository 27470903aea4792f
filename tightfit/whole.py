"""Plans with an optimiser that steps in their backward: what that takes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.choices import ChosenPlan
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.link import HostLink
from tightfit.schemas.updates import LinkSpeed, UpdateCost, Updates, WholeStep
from tightfit.settings import check_folder
from tightfit.variants import Variant

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.route import Route
    from tightfit.schemas.costs import Costs
    from tightfit.schemas.graph import Graph
    from tightfit.schemas.schedule import Step
    from tightfit.stages.combine.whole.accumulating import Accumulating
    from tightfit.stages.replay.referee import Replay


@dataclass(frozen=True)
class GradientSettings:
    """What a plan with an optimizer does with gradients: those of several microbatches `accumulate`
    on the device, and the loop has them until `optimizer.step()` where it is to `keep` them."""

    accumulate: bool = False
    keep: bool = False

    @property
    def stay(self) -> bool:
        """Whether gradients are on the device after some backwards."""
        return self.accumulate or self.keep


@dataclass(frozen=True)
class Predicted:
    """The replay of a step with its updates, and that of the first one, which makes the states."""

    graph: Graph
    costs: Costs
    link: HostLink
    updates: Updates
    played: Replay
    first: Replay
    keeps_gradients: bool = False

    @cached_property
    def adds(self) -> Accumulating:
        """What the step takes where gradients of several microbatches add up."""
        from tightfit.stages.combine.whole.accumulating import accumulating

        return accumulating(self.graph, self.costs, self.played.steps, self.link, self.updates)

    @cached_property
    def peaks(self) -> tuple[int, int]:
        """The most bytes of a step beyond what is there before it, and of the first one."""
        from tightfit.stages.combine.whole.accumulating import peak_with_gradients

        if not self.keeps_gradients:
            return self.played.peak, self.first.peak
        begun = replace(self.updates, first=True)
        both = (self.played, self.updates), (self.first, begun)
        peak, first = (peak_with_gradients(self.graph, one.steps, own) for one, own in both)
        return peak, first

    @property
    def resident(self) -> int:
        """The bytes of the states that stay on the device."""
        return sum(self.updates.costs[value].states for value in self.updates.on_device)

    def most(self, accumulates: bool) -> int:
        """The most bytes beyond what is there all the time, with sums of gradients or without."""
        return self.adds.most if accumulates else max(self.peaks)


@dataclass(frozen=True)
class Updating:
    """An optimiser of a model's parameters as it is going to step in the backward: `costs` by path,
    the speed of the link, the bytes of staging and states, and whether a processor is left for
    updates in the slow memory; `source` says where the speed is from. Where the loop keeps its
    `gradients` it updates after the backward."""

    optimizer: str
    costs: dict[str, UpdateCost]
    speed: LinkSpeed
    count: int
    staging: int
    slow: int
    slow_memory: str
    spare: bool = True
    gradients: GradientSettings = GradientSettings()
    source: str = ""

    def step(
        self, variant: Variant, plan: ChosenPlan, resident: frozenset[int] = frozenset()
    ) -> WholeStep:
        """What is predicted of a plan with the updates, where the states of the `resident`
        parameters stay on the device."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph import read_graph
        from tightfit.schemas.schedule import read_schedule, schedule_link, write_schedule
        from tightfit.schemas.store import header

        graph, costs = read_graph(variant.graph), read_costs(variant.costs)
        path = plan.module.parent / "schedule.arrow"
        link = schedule_link(path) or self.link(graph.device)
        predicted = self.predicted(graph, costs, read_schedule(path), link, resident)
        updates, played = predicted.updates, predicted.played
        digest = hashlib.sha256(updates.text().encode()).hexdigest()[:16]
        written = path.with_name(f"whole-{digest}.arrow")
        write_schedule(written, played.steps, header(variant.graph).digest, link, updates)
        fixed, adds, stays = plan.fixed, predicted.adds, predicted.resident
        before = fixed.there_before + self.staging + stays
        return WholeStep(
            optimizer=self.optimizer,
            total=before + predicted.most(self.gradients.accumulate),
            parameters=fixed.parameters,
            buffers=fixed.buffers,
            inputs=fixed.inputs,
            staging=self.staging,
            peak=predicted.peaks[0],
            first_peak=predicted.peaks[1],
            accumulating_peak=adds.last,
            slow_memory=self.slow_memory,
            slow=self.slow - stays,
            moved=sum(cost.states for cost in updates.costs.values()) - stays,
            seconds=played.seconds,
            waited=played.transfers.waited if played.transfers else 0.0,
            schedule=str(written),
            gradients=adds.gradients,
            opening_peak=adds.opening,
            adding_peak=adds.adding,
            accumulating_total=before + adds.most,
            resident=stays,
        )

    def predicted(
        self,
        graph: Graph,
        costs: Costs,
        planned: Sequence[Step],
        link: HostLink,
        resident: frozenset[int] = frozenset(),
    ) -> Predicted:
        """What the referee says of a schedule with the updates in its backward."""
        from tightfit.stages.combine.whole.backward import (
            after_backward,
            costs_by_value,
            in_backward,
        )
        from tightfit.stages.replay.referee import replay

        own = costs_by_value(graph, self.costs)
        updates = Updates(own, self.speed, self.count, on_device=resident)
        if self.gradients.keep:
            numbers = {graph.values[value].path: value for value in own}
            steps = after_backward(planned, [numbers[path] for path in self.costs])
        else:
            steps = in_backward(graph, planned, own)
        first = replay(graph, costs, steps, link=link, updates=replace(updates, first=True))
        played = replay(graph, costs, steps, link=link, updates=updates)
        return Predicted(graph, costs, link, updates, played, first, self.gradients.keep)

    def holding(self, variant: Variant, plan: ChosenPlan, whole: WholeStep) -> str:
        """The parts of a whole step's total, the largest first, as a clause: what is there before
        it, and what its largest moment takes."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph import read_graph
        from tightfit.schemas.schedule import read_schedule, schedule_link, schedule_updates
        from tightfit.stages.combine.holding import holding_whole
        from tightfit.stages.replay.referee import replay

        graph, costs = read_graph(variant.graph), read_costs(variant.costs)
        path, adds = Path(whole.schedule), self.gradients.accumulate
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
            overhead=self.speed.overhead,
            overhead_per_byte=self.speed.overhead_per_byte,
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
    from tightfit.schemas.graph import read_graph
    from tightfit.stages.device.optimiser import PIECE_BYTES
    from tightfit.stages.device.pieces import pieces_of, states_of
    from tightfit.stages.device.supported_optimizers import check
    from tightfit.stages.device.updating import STAGING
    from tightfit.stages.profile.kept_links import kept_link
    from tightfit.stages.profile.updates import has_spare, measure_updates

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
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None = None,
    resident: Collection[int] = (),
    keep_gradients: bool = False,
) -> torch.optim.Optimizer:
    """The optimiser that takes the place of another one, for any module: it updates each parameter
    in the backward, with its states in a file of the folder `disk`, or in the host's memory for
    parameters on a GPU, but for those of the `resident` parameters, by their numbers in all groups,
    which stay on the device. The states of `optimizer` move. With `keep_gradients` it updates in
    `step()` instead, and gradients are there until then, to be clipped, scaled or read.

    Raises ConfigError where it cannot step in the backward, or the disk has no room, or is none.
    """
    from tightfit.stages.device.optimiser import in_backward

    check_folder("in_backward", disk)
    try:
        return in_backward(optimizer, disk, resident=resident, keep_gradients=keep_gradients)
    except RuntimeError as error:
        raise ConfigError(f"optimizer: {error}") from error


def resident_numbers(
    variant: Variant, whole: WholeStep, optimizer: torch.optim.Optimizer
) -> frozenset[int]:
    """The numbers, in all groups of an optimiser, of the parameters whose states stay on the device
    in a plan."""
    from tightfit.schemas.graph import read_graph
    from tightfit.schemas.schedule import schedule_updates

    updates = schedule_updates(Path(whole.schedule))
    stay = updates.on_device if updates else frozenset()
    graph, model = read_graph(variant.graph), variant.built.model
    own = {id(model.get_parameter(graph.values[value].path)) for value in stay}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return frozenset(number for number, p in enumerate(parameters) if id(p) in own)


def _paths(graph: Any, model: nn.Module) -> dict[int, str]:
    """The paths of the parameters that a graph has gradients of, by the id of the tensor."""
    found = {}
    for gradient in graph.gradients:
        value = graph.values[gradient.value]
        if value.kind == "parameter":
            found[id(model.get_parameter(value.path))] = value.path
    return found
