"""From a chain and a machine to a plan with its pattern: asks an allocator, has the simulator play
what it gave, and says how good it is; or what is known to work, where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.chain import Chain
from tightfit.schemas.pipeline_devices import PipelineDevices
from tightfit.schemas.pipeline_pattern import PipelinePattern
from tightfit.schemas.pipeline_plan import PipelinePlan, PlannedDevice, PlannedStage
from tightfit.schemas.plan import optimality_gap
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.pipeline.allocation import build_pattern
from tightfit.stages.combine.pipeline.allocator import (
    AllocationProblem,
    AllocationResult,
    Allocator,
    allocate_within_period,
)
from tightfit.stages.combine.pipeline.contiguous import bisect_min, min_device_memory
from tightfit.stages.combine.pipeline.layers import PipelineLayers, layers_of_chain
from tightfit.stages.combine.pipeline.stage_recompute import (
    StageRecomputePlanner,
    build_stage_options,
)
from tightfit.stages.simulate.pipeline_pattern import PatternResult, simulate_pattern, step_seconds
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

OPTIMALITY_TOLERANCE = 1e-5
"""A period that is no further above its bound, in shares of itself, is optimal: ten times the
tolerance of the solver of integer programs."""


@dataclass(frozen=True)
class PipelineSettings:
    """What a user may set.

    A batch may take the seconds of `period` at most, None for no limit. The parameters are stored
    as many times as `weight_copies` say (3 as in M, 1 with a flush). Cuts may take `buffers`. `k`
    is that of k-periodic patterns. `inside` is how stages compute again: not at all (""), by blocks
    that keep everything or nothing ("rotor"), or by `options` of blocks ("rockmate"). The `engine`
    solves the allocator's integer programs. `microbatches` are the batches between two flushes of
    an allocator that flushes, None for as many as it takes."""

    period: float | None = None
    weight_copies: int = 3
    buffers: bool = False
    k: int | None = None
    inside: str = ""
    options: Mapping[str, list[BlockOption]] | None = None
    engine: SolverEngine = HIGHS_ENGINE
    microbatches: int | None = None


def plan_pipeline(
    chain: Chain,
    fleet: PipelineDevices,
    machine: str,
    allocator: Allocator,
    settings: PipelineSettings,
) -> tuple[PipelinePlan, PipelinePattern | None, list[ChainOperation]]:
    """The plan of a chain on the devices of a machine with its pattern, None where the status is
    "infeasible", and what stages do with their layers, nothing where they do not compute again."""
    layers = layers_of_chain(chain, fleet.link, settings.weight_copies, settings.buffers)
    inner = StageRecomputePlanner(chain, layers, settings.options) if settings.inside else None
    if inner is not None:
        layers = replace(layers, stage_options=build_stage_options(inner, layers))
    period = None if settings.period is None else layers.ticks(settings.period)
    asked = (period, settings.k, settings.engine, settings.microbatches)
    instance = AllocationProblem(layers, fleet.names, fleet.memory, *asked)
    answer = allocate_within_period(allocator, instance)
    if answer is None:
        return _infeasible_plan(instance, machine, allocator, settings), None, []
    pattern = build_pattern(answer.allocation, answer.timing)
    allocation = answer.allocation
    if inner is not None and allocation.inner:
        for stage, own in zip(allocation.stages, allocation.inner, strict=True):
            if own.there:
                inner.check(stage.first, stage.last, own)
    played = simulate_pattern(pattern, allocation.bytes(), allocation.room(fleet.memory))
    plan = _PlanContext(fleet, machine, allocator, settings).plan(answer, played, pattern)
    return plan, pattern, allocation.sequence() if settings.inside else []


@dataclass(frozen=True)
class _PlanContext:
    """What a plan was asked of: the devices, the machine's name, the allocator and the settings."""

    fleet: PipelineDevices
    machine: str
    allocator: Allocator
    settings: PipelineSettings

    def plan(
        self, answer: AllocationResult, played: PatternResult, pattern: PipelinePattern
    ) -> PipelinePlan:
        """The plan that an answer is, with what the simulator of patterns says of it."""
        allocation, layers = answer.allocation, answer.allocation.layers
        period = pattern.period / pattern.batches
        bound = min(answer.bound * layers.tick, period)
        optimal = period <= bound * (1 + OPTIMALITY_TOLERANCE)
        gap = optimality_gap(period, bound)
        optimal_in = self.allocator.about.optimal_in if optimal else ""
        fixed, loads = allocation.fixed(), allocation.loads()
        devices = [
            PlannedDevice(
                name,
                played.peaks.get(name, fixed[number]),
                self.fleet.memory,
                loads.get(name, 0) * layers.tick / period,
            )
            for number, name in enumerate(self.fleet.names)
        ]
        stages = [
            PlannedStage(
                number,
                self.fleet.names[stage.device],
                stage.first,
                stage.last,
                flying,
                allocation.again(number) * layers.tick,
            )
            for number, (stage, flying) in enumerate(
                zip(allocation.stages, played.in_flight, strict=True), start=1
            )
        ]
        return PipelinePlan(
            self.allocator.about.name,
            self.machine,
            "optimal" if optimal else "feasible",
            _plan_message(period, stages, gap, optimal_in, self._step_message(pattern)),
            period=period,
            batches=pattern.batches,
            batch_periods=played.span,
            lower_bound=bound,
            gap=gap,
            optimal_in=optimal_in,
            devices=devices,
            stages=stages,
            weight_copies=self.settings.weight_copies,
            buffers=self.settings.buffers,
            stage_recompute=self.settings.inside,
            solver=answer.solver,
            timed_out=answer.clock,
        )

    def _step_message(self, pattern: PipelinePattern) -> str:
        """The time of a step, "" if it is not known of how many microbatches it is."""
        count = self.settings.microbatches
        if count is None:
            return ""
        return f", a step of {count} takes {step_seconds(pattern, count):.6g} s"


def _plan_message(
    period: float, stages: list[PlannedStage], gap: float, optimal_in: str, step: str
) -> str:
    used = len({stage.device for stage in stages})
    where = "one device" if used == 1 else f"{used} devices"
    said = f"A batch ends every {period:.6g} s on {where}{step}"
    if optimal_in:
        return f"{said}; none of {optimal_in} is faster."
    return f"{said}; a plan up to {gap:.1%} faster is not ruled out."


def _infeasible_plan(
    instance: AllocationProblem, machine: str, allocator: Allocator, settings: PipelineSettings
) -> PipelinePlan:
    """The plan that says what is known to work instead."""
    name, layers = allocator.about.name, instance.layers
    shorter = None
    if instance.period is not None:
        shorter = allocator.allocate(replace(instance, period=None))
    memory = devices = None
    if shorter is not None:
        least = shorter.ticks * layers.tick
        sentence = (
            f"Nothing fits at a period of {settings.period:.6g} s; "
            f"the least period known to work is {least:.6g} s."
        )
    else:
        memory = min_device_memory(layers, instance.names)
        devices = _sufficient_devices(layers, instance)
        other = allocator.about.blind or allocator.about.flushes
        sentence = _known_to_work_message(instance, memory, devices, name if other else "")
    return PipelinePlan(
        name,
        machine,
        "infeasible",
        sentence,
        smallest_memory=memory,
        smallest_devices=devices,
        smallest_period=None if shorter is None else shorter.ticks * layers.tick,
        weight_copies=settings.weight_copies,
        buffers=settings.buffers,
        stage_recompute=settings.inside,
        solver="" if shorter is None else shorter.solver,
    )


def _known_to_work_message(
    instance: AllocationProblem, memory: int, devices: int | None, other: str
) -> str:
    """What is known to work, with one_f_one_b where that is not the allocator (`other`)."""
    count = len(instance.names)
    said = (
        f"The chain does not fit {count} device{'s' * (count > 1)} of {instance.memory} bytes"
        f"{f' with {other}' * bool(other)}; {'with one_f_one_b ' * bool(other)}{memory} bytes each "
        "are known to work"
    )
    if devices is not None:
        return f"{said}, or {devices} devices of {instance.memory} bytes."
    if count == 1 and instance.layers.stage_options is None:
        return f"{said}; a device can recompute what it lacks: plan with stage recompute rotor."
    return f"{said}, and no number of devices of {instance.memory} bytes is."


def _sufficient_devices(layers: PipelineLayers, instance: AllocationProblem) -> int | None:
    """The number of such devices that a contiguous allocation is known to fit, None where none is.
    One more never hurts."""

    def fitting(count: int) -> int | None:
        names = tuple(str(number) for number in range(count))
        return count if min_device_memory(layers, names) <= instance.memory else None

    given, most = len(instance.names), layers.count
    if most <= given or fitting(most) is None:
        return None
    return bisect_min(given, most, most, fitting)[1]
