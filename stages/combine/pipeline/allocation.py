"""Allocations: which device has which layers, and the tasks that follow from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tightfit.schemas.pipeline_pattern import PatternKind, PatternOperation, PipelinePattern
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.pipeline.layers import PipelineLayers, StageOption
from tightfit.stages.simulate.pipeline_pattern import DeviceCapacity, StageMemory


class Stage(NamedTuple):
    """Layers first..last on a device, by its number from 0."""

    first: int
    last: int
    device: int


@dataclass(frozen=True)
class PatternTask:
    """What is done once forward and once backward for each batch: a stage on its device, or a
    transfer over a link after stage `stage`. `lane` names the device or the link; ticks."""

    stage: int
    transfer: bool
    lane: str
    forward: int
    backward: int

    @property
    def load(self) -> int:
        """Ticks of both directions."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Allocation:
    """Stages in the order of the chain; `names` are those of the devices, `inner` the plans inside
    of stages, empty where all keep everything."""

    layers: PipelineLayers
    stages: tuple[Stage, ...]
    names: tuple[str, ...]
    inner: tuple[StageOption, ...] = ()

    @property
    def tasks(self) -> list[PatternTask]:
        """Stages, and the transfers between stages on different devices, in their order."""
        layers, made = self.layers, []
        for number, stage in enumerate(self.stages, start=1):
            forward, backward = self._ticks(number)
            made.append(PatternTask(number, False, self.names[stage.device], forward, backward))
            if number < len(self.stages):
                there = self.stages[number].device
                if there != stage.device:
                    send, receive = int(layers.send[stage.last]), int(layers.receive[stage.last])
                    made.append(
                        PatternTask(number, True, self.link(stage.device, there), send, receive)
                    )
        return made

    def _ticks(self, number: int) -> tuple[int, int]:
        """Ticks of the forward and of the backward of a stage."""
        if self.inner:
            return self.inner[number - 1].forward, self.inner[number - 1].backward
        stage = self.stages[number - 1]
        own = slice(stage.first, stage.last + 1)
        return int(self.layers.forward[own].sum()), int(self.layers.backward[own].sum())

    def again(self, number: int) -> int:
        """Ticks that a stage computes again for each batch."""
        stage = self.stages[number - 1]
        once = int(self.layers.load[stage.last] - self.layers.load[stage.first - 1])
        return max(sum(self._ticks(number)) - once, 0)

    def sequence(self) -> list[ChainOperation]:
        """What stages do with their layers, their numbers as branches: the forward of each, up to
        the first forward of its last layer, and its backward."""
        found: list[ChainOperation] = []
        for number, stage in enumerate(self.stages, start=1):
            layers = range(stage.first, stage.last + 1)
            own = [ChainOperation("F_all", layer) for layer in layers]
            own += [ChainOperation("B", layer) for layer in reversed(layers)]
            if self.inner and self.inner[number - 1].there:
                own = [*self.inner[number - 1].there, *self.inner[number - 1].back]
            found += [replace(operation, branch=number) for operation in own]
        return found

    def link(self, one: int, other: int) -> str:
        """The name of the link between two devices."""
        return "/".join(self.names[device] for device in sorted((one, other)))

    def loads(self) -> dict[str, int]:
        """Ticks of each device and each link: all that goes over a link counts, since its
        transfers take turns, those of several cuts and of both directions."""
        found: dict[str, int] = defaultdict(int)
        for task in self.tasks:
            found[task.lane] += task.load
        return dict(found)

    @property
    def load(self) -> int:
        """The ticks that a period has at least: those of the lane with the most to do."""
        return max(self.loads().values())

    def merged(self) -> Allocation:
        """The same with neighboring stages on one device made one."""
        stages: list[Stage] = []
        for stage in self.stages:
            if stages and stages[-1].device == stage.device:
                stages[-1] = stages[-1]._replace(last=stage.last)
            else:
                stages.append(stage)
        return Allocation(self.layers, tuple(stages), self.names)

    def layer_by_layer(self) -> Allocation:
        """The same with a stage for every layer."""
        stages = [
            Stage(layer, layer, stage.device)
            for stage in self.stages
            for layer in range(stage.first, stage.last + 1)
        ]
        return Allocation(self.layers, tuple(stages), self.names)

    def bytes(self) -> list[StageMemory]:
        """What each stage takes, for the simulator."""
        layers = self.layers
        if self.inner:
            return [
                StageMemory(
                    stored=plan.stored,
                    output=int(layers.output[stage.last]),
                    gradient=int(layers.gradient[stage.last]),
                    forward=plan.work,
                    backward=plan.work,
                )
                for stage, plan in zip(self.stages, self.inner, strict=True)
            ]
        return [
            StageMemory(
                stored=int(layers.kept[stage.last] - layers.kept[stage.first - 1]),
                output=int(layers.output[stage.last]),
                gradient=int(layers.gradient[stage.last]),
                forward=int(layers.forward_work[stage.first : stage.last + 1].max()),
                backward=int(layers.backward_work[stage.first : stage.last + 1].max()),
            )
            for stage in self.stages
        ]

    def fixed(self) -> list[int]:
        """The bytes that each device has all the time: weights, and buffers of its cuts."""
        layers, found = self.layers, [0] * len(self.names)
        for number, stage in enumerate(self.stages):
            found[stage.device] += int(layers.weights[stage.last] - layers.weights[stage.first - 1])
            before = self.stages[number - 1] if number else None
            if before is not None and before.device != stage.device:
                for device in (before.device, stage.device):
                    found[device] += int(layers.buffer[before.last])
        return found

    def room(self, memory: int) -> DeviceCapacity:
        """What the devices have, with so many bytes each, for the simulator."""
        fixed = dict(zip(self.names, self.fixed(), strict=True))
        return DeviceCapacity(fixed, dict.fromkeys(self.names, memory))


def select_stage_options(
    layers: PipelineLayers, stages: Sequence[Stage], rows: Sequence[int]
) -> tuple[StageOption, ...]:
    """The plans inside of stages, by their rows of the menu; none where there is no menu."""
    if layers.stage_options is None:
        return ()
    return tuple(
        layers.stage_options.plan(stage.first, stage.last, row)
        for stage, row in zip(stages, rows, strict=True)
    )


@dataclass(frozen=True)
class PatternTiming:
    """When the tasks of an allocation run on batch 0, in ticks, on batch i `i * period` later;
    `kept` of each `turns` batches are there, the others are left out (k-periodic). Where there is a
    `spacing`, the batches of a turn follow each other so many ticks apart, forward and backward."""

    period: int
    forward: Sequence[int]
    backward: Sequence[int]
    kept: int = 1
    turns: int = 1
    spacing: tuple[int, int] | None = None


def build_pattern(allocation: Allocation, timing: PatternTiming) -> PipelinePattern:
    """The pattern of a timing: period `timing.period * timing.turns`, `timing.kept` batches."""
    tick = allocation.layers.tick
    whole = timing.period * timing.turns
    spacing = timing.spacing or (timing.period, timing.period)
    rows: list[tuple[PatternTask, PatternKind, int, int, int]] = []
    for task, forward, backward in zip(
        allocation.tasks, timing.forward, timing.backward, strict=True
    ):
        there, back = _operation_kinds(task)
        for turn in range(timing.kept):
            for kind, begin, ticks, apart in (
                (there, forward, task.forward, spacing[0]),
                (back, backward, task.backward, spacing[1]),
            ):
                periods, start = divmod(begin + turn * apart, whole)
                rows.append((task, kind, start, ticks, turn - periods * timing.kept))
    _, first = min(
        (start, shift)
        for task, kind, start, _, shift in rows
        if (kind, task.stage) == ("backward", 1)
    )
    operations = [
        PatternOperation(task.lane, task.stage, kind, start * tick, ticks * tick, shift - first)
        for task, kind, start, ticks, shift in rows
    ]
    return PipelinePattern(whole * tick, timing.kept, operations)


def _operation_kinds(task: PatternTask) -> tuple[PatternKind, PatternKind]:
    return ("send", "receive") if task.transfer else ("forward", "backward")
