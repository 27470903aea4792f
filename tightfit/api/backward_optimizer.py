"""Plans with an optimizer that steps in their backward: what that takes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.api.input_specialization import InputSpecialization
from tightfit.api.plan_options import DEFAULT_GRADIENTS, GradientOptions, OptionalPath, check_folder
from tightfit.api.plan_result import ChosenPlan
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import (
    LinkSpeed,
    OptimizerPlan,
    OptimizerStepPrediction,
    ParameterUpdateCost,
)
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.api.stage_runner import StageRunner
    from tightfit.schemas.costs import Costs
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.schemas.schedule import ScheduleStep
    from tightfit.stages.combine.optimizer_offload.gradient_accumulation import AccumulationPeaks
    from tightfit.stages.simulate.simulate import SimulationResult


@dataclass(frozen=True)
class PredictedOptimizerStep:
    """The simulation of a step with its updates, and that of the first one, which makes the
    states."""

    graph: Graph
    costs: Costs
    link: HostLink
    updates: OptimizerPlan
    played: SimulationResult
    first: SimulationResult
    keeps_gradients: bool = False

    @cached_property
    def adds(self) -> AccumulationPeaks:
        """What the step takes where gradients of several microbatches add up."""
        from tightfit.stages.combine.optimizer_offload.gradient_accumulation import (
            accumulation_peaks,
        )

        return accumulation_peaks(
            self.graph, self.costs, self.played.steps, self.link, self.updates
        )

    @cached_property
    def peaks(self) -> tuple[int, int]:
        """The most bytes of a step beyond what is there before it, and of the first one."""
        from tightfit.stages.combine.optimizer_offload.gradient_accumulation import (
            peak_with_gradients,
        )

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
class OptimizerSetup:
    """An optimizer of a model's parameters as it is going to step in the backward: `costs` by path,
    the speed of the link, the bytes of staging and states, and whether a processor is left for
    updates in the offload target; `source` says where the speed is from. Where the loop keeps its
    `gradients` it updates after the backward."""

    optimizer: str
    costs: dict[str, ParameterUpdateCost]
    speed: LinkSpeed
    count: int
    staging: int
    slow: int
    slow_memory: str
    spare: bool = True
    gradients: GradientOptions = DEFAULT_GRADIENTS
    source: str = ""

    def step(
        self, variant: InputSpecialization, plan: ChosenPlan, resident: frozenset[int] = frozenset()
    ) -> OptimizerStepPrediction:
        """What is predicted of a plan with the updates, where the states of the `resident`
        parameters stay on the device."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.schemas.schedule import read_schedule, schedule_link, write_schedule
        from tightfit.schemas.store import read_header

        graph, costs = read_graph(variant.graph), read_costs(variant.costs)
        path = plan.package.parent / "schedule.arrow"
        link = schedule_link(path) or self.link(graph.device)
        predicted = self.predicted(graph, costs, read_schedule(path), link, resident)
        updates, played = predicted.updates, predicted.played
        digest = hashlib.sha256(updates.text().encode()).hexdigest()[:16]
        written = path.with_name(f"whole-{digest}.arrow")
        write_schedule(written, played.steps, read_header(variant.graph).digest, link, updates)
        fixed, adds, stays = plan.baseline, predicted.adds, predicted.resident
        before = fixed.bytes_before_step + self.staging + stays
        return OptimizerStepPrediction(
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
            waited=played.transfers.wait_seconds if played.transfers else 0.0,
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
        planned: Sequence[ScheduleStep],
        link: HostLink,
        resident: frozenset[int] = frozenset(),
    ) -> PredictedOptimizerStep:
        """What the simulator says of a schedule with the updates in its backward."""
        from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import (
            add_updates_after_backward,
            add_updates_in_backward,
            costs_by_value,
        )
        from tightfit.stages.simulate.simulate import simulate

        own = costs_by_value(graph, self.costs)
        updates = OptimizerPlan(own, self.speed, self.count, on_device=resident)
        if self.gradients.keep:
            numbers = {graph.values[value].path: value for value in own}
            steps = add_updates_after_backward(planned, [numbers[path] for path in self.costs])
        else:
            steps = add_updates_in_backward(graph, planned, own)
        first = simulate(graph, costs, steps, link=link, updates=replace(updates, first=True))
        played = simulate(graph, costs, steps, link=link, updates=updates)
        return PredictedOptimizerStep(
            graph, costs, link, updates, played, first, self.gradients.keep
        )

    def holding(
        self, variant: InputSpecialization, plan: ChosenPlan, whole: OptimizerStepPrediction
    ) -> str:
        """The parts of a whole step's total, the largest first, as a clause: what is there before
        it, and what its largest moment takes."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.schemas.schedule import read_schedule, schedule_link, schedule_optimizer_plan
        from tightfit.stages.combine.plan_summary import describe_optimizer_step_peak
        from tightfit.stages.simulate.simulate import simulate

        graph, costs = read_graph(variant.graph), read_costs(variant.costs)
        path, adds = Path(whole.schedule), self.gradients.accumulate
        steps, link, updates = (
            read_schedule(path),
            schedule_link(path),
            schedule_optimizer_plan(path),
        )
        assert updates is not None
        played = max(
            (
                simulate(graph, costs, steps, adds, link, replace(updates, first=first))
                for first in (False, True)
            ),
            key=lambda each: each.peak,
        )
        sums = whole.gradients if adds else 0
        return describe_optimizer_step_peak(
            graph, played, plan.baseline, whole.total, whole.staging, sums
        )

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


def measure_optimizer(
    runner: StageRunner,
    graph: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: OptionalPath,
    away: bool = False,
) -> OptimizerSetup:
    """What the updates of an optimizer take, with states in a folder, also in the memory of
    parameters that are `away`; raises ConfigError where it cannot step in the backward."""
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.profile.link_cache import cached_link
    from tightfit.stages.profile.optimizer_updates import has_spare_core, measure_updates
    from tightfit.stages.runtime.offload.backward_optimizer import PIECE_BYTES
    from tightfit.stages.runtime.offload.parameter_pieces import (
        split_into_pieces,
        states_per_parameter,
    )
    from tightfit.stages.runtime.offload.piecewise_optimizer import STAGING_BUFFER_COUNT
    from tightfit.stages.runtime.offload.supported_optimizers import check_supported_optimizer

    try:
        check_supported_optimizer(optimizer)
    except RuntimeError as error:
        raise ConfigError(f"optimizer: {error}") from error
    kind, groups = type(optimizer), optimizer.param_groups
    paths = _parameter_paths(read_graph(graph), model)
    parameters = [(p, group) for group in groups for p in group["params"]]
    names = [paths.get(id(parameter), "") for parameter, _ in parameters]
    counts = [states_per_parameter(kind, group) for _, group in parameters]
    pieces = [
        piece
        for own in split_into_pieces(
            [parameter for parameter, _ in parameters], counts, PIECE_BYTES
        )
        for piece in own
    ]
    device = parameters[0][0].device
    place = None if folder is None else str(folder)
    try:
        costs = measure_updates(kind, groups, names, PIECE_BYTES, place, beside=away)
    except RuntimeError as error:
        raise ConfigError(f"plan: offload: path: {error}") from error
    kept = cached_link(runner.store, str(device), folder)
    return OptimizerSetup(
        optimizer=kind.__name__,
        costs=costs,
        speed=kept.speed,
        count=STAGING_BUFFER_COUNT,
        staging=STAGING_BUFFER_COUNT * max(piece.size for piece in pieces),
        slow=sum(piece.size for piece in pieces),
        slow_memory="disk" if device.type == "cpu" else "host",
        spare=has_spare_core(device),
        source=kept.said,
    )


def in_backward(
    optimizer: torch.optim.Optimizer,
    offload_path: OptionalPath = None,
    resident: Collection[int] = (),
    keep_gradients: bool = False,
) -> torch.optim.Optimizer:
    """Makes the optimizer that updates each parameter in the backward, for any module.

    Args:
        optimizer: The optimizer whose place it takes; its states move.
        offload_path: Folder of the file with its states, for parameters on the CPU; those of a GPU
            have them in the host's memory. By default the folder that the environment variable
            TIGHTFIT_DISK names, or that of temporary files.
        resident: Parameters whose states stay on the device, by their numbers in all groups.
        keep_gradients: Whether it updates in `step()` instead; gradients are there until then, to
            be clipped, scaled or read.

    Returns:
        The optimizer for the training loop.

    Raises:
        ConfigError: It cannot step in the backward, or the folder is none or has no space.

    Example:
        >>> optimizer = tightfit.in_backward(torch.optim.AdamW(model.parameters()), "/mnt/nvme")
    """
    from tightfit.stages.runtime.offload.backward_optimizer import in_backward

    check_folder("in_backward", offload_path, "offload_path")
    try:
        return in_backward(
            optimizer, offload_path, resident=resident, keep_gradients=keep_gradients
        )
    except RuntimeError as error:
        raise ConfigError(f"optimizer: {error}") from error


def resident_parameter_numbers(
    variant: InputSpecialization, whole: OptimizerStepPrediction, optimizer: torch.optim.Optimizer
) -> frozenset[int]:
    """The numbers, in all groups of an optimizer, of the parameters whose states stay on the device
    in a plan."""
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.schedule import schedule_optimizer_plan

    updates = schedule_optimizer_plan(Path(whole.schedule))
    stay = updates.on_device if updates else frozenset()
    graph, model = read_graph(variant.graph), variant.built.model
    own = {id(model.get_parameter(graph.values[value].path)) for value in stay}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return frozenset(number for number, p in enumerate(parameters) if id(p) in own)


def _parameter_paths(graph: Any, model: nn.Module) -> dict[int, str]:
    """The paths of the parameters that a graph has gradients of, by the id of the tensor."""
    found = {}
    for gradient in graph.gradients:
        value = graph.values[gradient.value]
        if value.kind == "parameter":
            found[id(model.get_parameter(value.path))] = value.path
    return found
