"""From a chain and a machine to a plan with its pattern: asks an allocator, has the referee play
what it gave, and says how good it is; or what is known to work, where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tightfit.schemas.chain import Chain
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.options import Option
from tightfit.schemas.pattern import Pattern
from tightfit.schemas.pipeline_plan import PipelinePlan, PlannedDevice, PlannedStage
from tightfit.schemas.plan import gap_of
from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.allocate.allocation import pattern_of
from tightfit.stages.combine.allocate.allocator import AllocationInstance, Allocator, Answer
from tightfit.stages.combine.allocate.contiguous import least_memory
from tightfit.stages.combine.allocate.fleet import Fleet
from tightfit.stages.combine.allocate.halving import least_found
from tightfit.stages.combine.allocate.inner import Inner, menu_of
from tightfit.stages.combine.allocate.layers import Layers, layers_of_chain
from tightfit.stages.replay.pipeline import PlayedPattern, play_pattern

PROVEN = 1e-5
"""A period that is no further above its bound, in shares of itself, is optimal: ten times the
tolerance of the solver of integer programs."""


@dataclass(frozen=True)
class Settings:
    """What a user may set.

    A batch may take the seconds of `period`, None for the fewest. The parameters are stored as many
    times as `weight_copies` say (3 as in M, 1 with a flush). Cuts may take `buffers`. `k` is that
    of k-periodic patterns. `inside` is how stages compute again: not at all (""), by blocks that
    keep everything or nothing ("rotor"), or by `options` of blocks ("rockmate"). The `engine`
    solves the allocator's integer programs."""

    period: float | None = None
    weight_copies: int = 3
    buffers: bool = False
    k: int | None = None
    inside: str = ""
    options: Mapping[str, list[Option]] | None = None
    engine: Engine = HIGHS


def plan_pipeline(
    chain: Chain, fleet: Fleet, machine: str, allocator: Allocator, settings: Settings
) -> tuple[PipelinePlan, Pattern | None, list[Operation]]:
    """The plan of a chain on the devices of a machine with its pattern, None where the verdict is
    "infeasible", and what stages do with their layers, nothing where they do not compute again."""
    layers = layers_of_chain(chain, fleet.wire, settings.weight_copies, settings.buffers)
    inner = Inner(chain, layers, settings.options) if settings.inside else None
    if inner is not None:
        layers = replace(layers, menu=menu_of(inner, layers))
    period = None if settings.period is None else layers.ticks(settings.period)
    asked = (period, settings.k, settings.engine)
    instance = AllocationInstance(layers, fleet.names, fleet.memory, *asked)
    answer = allocator.allocate(instance)
    if answer is None:
        return _infeasible(instance, machine, allocator, settings), None, []
    pattern = pattern_of(answer.allocation, answer.timing)
    allocation = answer.allocation
    if inner is not None and allocation.inner:
        for stage, own in zip(allocation.stages, allocation.inner, strict=True):
            if own.there:
                inner.check(stage.first, stage.last, own)
    played = play_pattern(pattern, allocation.bytes(), allocation.room(fleet.memory))
    plan = _Asked(fleet, machine, allocator, settings).plan(answer, played, pattern)
    return plan, pattern, allocation.sequence() if settings.inside else []


@dataclass(frozen=True)
class _Asked:
    """What a plan was asked of: the devices, the machine's name, the allocator and the settings."""

    fleet: Fleet
    machine: str
    allocator: Allocator
    settings: Settings

    def plan(self, answer: Answer, played: PlayedPattern, pattern: Pattern) -> PipelinePlan:
        """The plan that an answer is, with what the referee of patterns says of it."""
        allocation, layers = answer.allocation, answer.allocation.layers
        period = pattern.period / pattern.batches
        bound = min(answer.bound * layers.tick, period)
        optimal = period <= bound * (1 + PROVEN)
        gap = gap_of(period, bound)
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
            _sentence(period, stages, gap, optimal_in),
            period=period,
            batches=pattern.batches,
            span=played.span,
            lower_bound=bound,
            gap=gap,
            optimal_in=optimal_in,
            devices=devices,
            stages=stages,
            weight_copies=self.settings.weight_copies,
            buffers=self.settings.buffers,
            inside=self.settings.inside,
            solver=answer.solver,
            clock=answer.clock,
        )


def _sentence(period: float, stages: list[PlannedStage], gap: float, optimal_in: str) -> str:
    used = len({stage.device for stage in stages})
    where = "one device" if used == 1 else f"{used} devices"
    said = f"A batch ends every {period:.6g} s on {where}"
    if optimal_in:
        return f"{said}; none of {optimal_in} is faster."
    return f"{said}; no plan is known to be impossible that is up to {gap:.1%} faster."


def _infeasible(
    instance: AllocationInstance, machine: str, allocator: Allocator, settings: Settings
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
        memory = least_memory(layers, instance.names)
        devices = _enough_devices(layers, instance)
        how = " with one_f_one_b" if allocator.about.blind else ""
        sentence = _what_works(instance, memory, devices, how)
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
        inside=settings.inside,
        solver="" if shorter is None else shorter.solver,
    )


def _what_works(instance: AllocationInstance, memory: int, devices: int | None, how: str) -> str:
    count = len(instance.names)
    said = (
        f"The chain does not fit {count} device{'s' * (count > 1)} of {instance.memory} bytes; "
        f"{memory} bytes each are known to work{how}"
    )
    if devices is not None:
        return f"{said}, or {devices} devices of {instance.memory} bytes."
    if count == 1 and instance.layers.menu is None:
        return f"{said}; a device can compute again instead of storing: plan with --inside rotor."
    return f"{said}, and no number of devices of {instance.memory} bytes is."


def _enough_devices(layers: Layers, instance: AllocationInstance) -> int | None:
    """The number of such devices that a contiguous allocation is known to fit, None where none is.
    One more never hurts."""

    def fitting(count: int) -> int | None:
        names = tuple(str(number) for number in range(count))
        return count if least_memory(layers, names) <= instance.memory else None

    given, most = len(instance.names), layers.count
    if most <= given or fitting(most) is None:
        return None
    return least_found(given, most, most, fitting)[1]
