"""The simulator of a pipeline's ranks: the memory of each, from the order of its own actions.

A storage that a stage makes and others read (a parcel), an output, a tangent and a gradient live as
long as somebody holds them. The program of the stage holds one up to its last use, the rank until
the last taker has it, a message until its `wait`. All else is the program's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from tightfit.schemas.actions import ComputeLoss
from tightfit.schemas.actions import PassGradient as HandedOver
from tightfit.schemas.graph.ownership import (
    caller_owned_storages,
    gradient_storages,
    partial_gradients_by_owner,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.pipeline import (
    BACKWARD,
    FORWARD,
    LOSS,
    SUM,
    PipelineSchedule,
    RankAction,
    SharedGradient,
)
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.effects import last_uses, schedule_effects
from tightfit.util.errors import ScheduleError

BatchStorage = tuple[int, int]
"""A storage on a microbatch."""


@dataclass(frozen=True)
class StageStepMemory:
    """A step of a stage's program: `own` bytes live after it and `peak` within it, without what
    others may hold. Of what others may hold, it makes the storages `makes`, and the program holds
    the storages `ends` no more after it. `given` is the value that it hands over, NONE where it is
    none."""

    own: int
    peak: int
    makes: tuple[int, ...]
    ends: tuple[int, ...]
    given: int


@dataclass(frozen=True)
class StageMemoryTrace:
    """A stage's program: its graph, its moments up to the one between forward and backward, and the
    later ones."""

    graph: Graph
    forward: list[StageStepMemory]
    backward: list[StageStepMemory]


@dataclass(frozen=True)
class RankOverhead:
    """Bytes beside the programs: of a loss while it is computed and of what remains of it; of a
    random state, and, by stage, the most while its random numbers are drawn ahead."""

    loss_peak: int = 0
    loss_left: int = 0
    state: int = 0
    draws: Mapping[int, int] = field(default_factory=dict)


def stage_memory_trace(graph: Graph, steps: Sequence[ScheduleStep]) -> StageMemoryTrace:
    """What a stage's program does to memory; `steps` are as the simulator filled them in."""
    storage = [value.storage for value in graph.values]
    walked = list(schedule_effects(graph, steps))
    inputs = {storage[value] for value in graph.inputs if value != NO_VALUE}
    others = (gradient_storages(graph) | caller_owned_storages(graph)) - graph.baseline_storages()
    last: dict[int, int] = dict.fromkeys(inputs, 0)
    for value, position in last_uses(graph, walked, others | inputs).items():
        last[storage[value]] = max(last.get(storage[value], 0), position)
    ends: dict[int, list[int]] = defaultdict(list)
    for one, position in last.items():
        ends[position].append(one)
    moments: list[StageStepMemory] = []
    counted: set[int] = set()
    split = len(walked)
    for effect in walked:
        makes = {storage[value] for value in effect.makes} & others - counted
        counted |= makes
        during = sum(graph.storages[one] for one in counted)
        counted -= set(effect.drops)
        after = sum(graph.storages[one] for one in counted)
        action = effect.step.action
        if isinstance(action, ComputeLoss):
            split = effect.position + 1
        moments.append(
            StageStepMemory(
                own=effect.step.live - after,
                peak=effect.step.peak - during,
                makes=tuple(sorted(makes)),
                ends=tuple(ends[effect.position]),
                given=action.value if isinstance(action, HandedOver) else NO_VALUE,
            )
        )
    return StageMemoryTrace(graph, moments[:split], moments[split:])


def simulate_ranks(
    pipeline: PipelineSchedule,
    graph: Graph,
    segments: Sequence[StageMemoryTrace],
    extra: RankOverhead,
) -> PipelineSchedule:
    """The pipeline with the bytes of all actions and the peak of each rank filled in; `graph` is
    that of the whole model. Gradients are absent when the step begins.

    Raises ScheduleError where an action reads what is not there.
    """
    played = [
        _RankSimulator(pipeline, graph, segments, extra, rank).play()
        for rank in range(pipeline.ranks)
    ]
    peaks = [max((action.peak for action in actions), default=0) for actions in played]
    return replace(pipeline, actions=played, peaks=peaks)


class _RankSimulator:
    def __init__(
        self,
        pipeline: PipelineSchedule,
        graph: Graph,
        segments: Sequence[StageMemoryTrace],
        extra: RankOverhead,
        rank: int,
    ) -> None:
        self.pipeline, self.graph, self.segments = pipeline, graph, segments
        self.extra, self.rank = extra, rank
        self.storage = [value.storage for value in graph.values]
        self.holders: dict[BatchStorage, int] = defaultdict(int)
        self.own: dict[BatchStorage, int] = {}
        self.bytes = self.peak = 0
        self.left = self.takers_left()
        self.waiting: dict[BatchStorage, int] = {}
        self.lasting: set[BatchStorage] = set()
        self.grads: set[int] = set()
        self.parts = partial_gradients_by_owner(graph)
        self.drawing: list[int] = [
            stage.stage for stage in pipeline.stages if stage.rank == rank and stage.draws
        ]
        self.last = len(pipeline.stages)

    def takers_left(self) -> dict[int, int]:
        """How many units of this rank take each parcel, by value, and messages that it sends."""
        found = {}
        for parcel in self.pipeline.parcels:
            ranks = [self.pipeline.rank_of(stage) for stage, _ in parcel.takers]
            sends = self.pipeline.rank_of(parcel.maker[0]) == self.rank
            messages = len(set(ranks) - {self.rank}) if sends else 0
            found[parcel.value] = ranks.count(self.rank) + messages
        return found

    def play(self) -> list[RankAction]:
        """The rank's actions with their bytes."""
        played = []
        for action in self.pipeline.actions[self.rank]:
            self.peak = self.bytes
            self.act(action)
            played.append(replace(action, live=self.bytes, peak=self.peak))
        if named := sorted(self.holders.keys() - self.lasting):
            raise ScheduleError(f"rank {self.rank} never lets go of the storages {named[:4]}")
        return played

    def size(self, storage: int) -> int:
        """The bytes of a storage."""
        return self.graph.storages[storage]

    def add(self, amount: int) -> None:
        """Counts bytes that come, or go."""
        self.bytes += amount
        self.peak = max(self.peak, self.bytes)

    def hold(self, storage: int, batch: int) -> None:
        """One more holds a storage, which is there from the first on."""
        self.holders[storage, batch] += 1
        if self.holders[storage, batch] == 1:
            self.add(self.size(storage))

    def drop(self, storage: int, batch: int) -> None:
        """One less holds a storage, which goes with the last."""
        if not self.holders[storage, batch]:
            raise ScheduleError(f"rank {self.rank} reads storage {storage}, which is not there")
        self.holders[storage, batch] -= 1
        if not self.holders[storage, batch]:
            del self.holders[storage, batch]
            self.add(-self.size(storage))

    def act(self, action: RankAction) -> None:
        """One action."""
        batch = action.microbatch
        match action.kind:
            case "draw":
                self.draw()
            case "receive":
                self.keep(self.pipeline.parcels[action.subject].value, batch)
            case "send":
                self.hold(self.parcel_storage(action.subject), batch)
                self.taken(self.pipeline.parcels[action.subject].value, batch)
            case "wait":
                self.drop(self.parcel_storage(action.subject), batch)
            case "forward":
                self.forward(action.subject, batch)
            case "loss":
                self.loss(batch)
            case "backward":
                self.backward(action.subject, batch)
            case "sum":
                self.sum(action.subject, batch)
            case "share":
                self.share(self.pipeline.shared[action.subject])
            case unknown:
                assert_never(unknown)

    def parcel_storage(self, number: int) -> int:
        """The storage of a parcel."""
        return self.storage[self.pipeline.parcels[number].value]

    def keep(self, value: int, batch: int) -> None:
        """A parcel is there for those units of the rank that take it."""
        if self.left[value]:
            self.waiting[value, batch] = self.left[value]
            self.hold(self.storage[value], batch)

    def take(self, stage: int, phase: str, batch: int) -> list[int]:
        """The storages that a unit takes; it holds them now, and the rank no more if it was the
        last."""
        found = []
        for parcel in self.pipeline.parcels:
            if (stage, phase) in parcel.takers:
                storage = self.storage[parcel.value]
                self.hold(storage, batch)
                self.taken(parcel.value, batch)
                found.append(storage)
        return found

    def taken(self, value: int, batch: int) -> None:
        """One of those that a parcel is kept for has it."""
        if (value, batch) not in self.waiting:
            raise ScheduleError(f"rank {self.rank} reads value {value}, which is not there")
        self.waiting[value, batch] -= 1
        if not self.waiting[value, batch]:
            del self.waiting[value, batch]
            self.drop(self.storage[value], batch)

    def made(self, stage: int, phase: str) -> list[int]:
        """The values of the parcels that a unit makes."""
        return [p.value for p in self.pipeline.parcels if p.maker == (stage, phase)]

    def draw(self) -> None:
        """Random numbers are drawn ahead: a state remains for each forward that draws, and the one
        that comes after the step."""
        self.add(self.extra.state)
        self.add(-self.extra.state)
        for _ in range(self.pipeline.microbatches):
            for stage, peak in sorted(self.extra.draws.items()):
                if stage in self.drawing:
                    self.add(self.extra.state)
                self.add(peak)
                self.add(-peak)
        self.add(self.extra.state)

    def moments(self, moments: Sequence[StageStepMemory], stage: int, batch: int) -> None:
        """Plays a part of a program."""
        before = self.own.pop((stage, batch), 0)
        self.bytes -= before
        for moment in moments:
            for storage in moment.makes:
                self.hold(storage, batch)
            self.peak = max(self.peak, self.bytes + moment.peak)
            if moment.given != NO_VALUE:
                self.give(moment.given, stage, batch)
                self.peak = max(self.peak, self.bytes + moment.own)
            for storage in moment.ends:
                if (storage, batch) in self.holders:
                    self.drop(storage, batch)
            last = moment.own
        self.own[stage, batch] = last if moments else before
        self.bytes += self.own[stage, batch]
        self.peak = max(self.peak, self.bytes)

    def forward(self, stage: int, batch: int) -> None:
        """The forward of a stage, whose outputs are kept for those who take them."""
        self.take(stage, FORWARD, batch)
        segment = self.segments[stage]
        if stage in self.drawing:
            self.add(-self.extra.state)
        *inner, between = segment.forward
        self.moments(inner, stage, batch)
        for value in self.made(stage, FORWARD):
            self.keep(value, batch)
        for storage in self.results() if stage == self.last else ():
            self.hold(storage, batch)
        # Tangents come when the backward begins.
        self.moments([replace(between, makes=())], stage, batch)

    def results(self) -> set[int]:
        """The storages of the model's outputs that are made in the step."""
        fixed = self.graph.baseline_storages()
        return {self.storage[value] for value in self.graph.output_values()} - fixed

    def loss(self, batch: int) -> None:
        """The loss takes the outputs and makes tangents; what remains of it stays to the end."""
        self.add(self.extra.loss_peak)
        self.add(self.extra.loss_left - self.extra.loss_peak)
        for value in self.made(self.last, LOSS):
            self.keep(value, batch)
        for storage in self.results():
            self.drop(storage, batch)

    def last_to_end(self, storage: int, batch: int) -> None:
        """A storage stays to the end of the step and after it."""
        self.hold(storage, batch)
        self.lasting.add((storage, batch))

    def backward(self, stage: int, batch: int) -> None:
        """The backward of a stage."""
        self.take(stage, BACKWARD, batch)
        self.moments(self.segments[stage].backward, stage, batch)
        self.bytes -= self.own.pop((stage, batch))

    def sum(self, stage: int, batch: int) -> None:
        """The sums of gradients whose parts come from several stages."""
        parts = self.take(stage, SUM, batch)
        for shared in self.pipeline.shared:
            if shared.parts and shared.root == stage:
                self.accumulate(shared.value, shared.parts[0], batch)
        for storage in parts:
            self.drop(storage, batch)

    def give(self, value: int, stage: int, batch: int) -> None:
        """A gradient that a program hands over: to another stage, or to a parameter."""
        segment = self.segments[stage].graph
        if value in self.made(stage, BACKWARD):
            self.keep(value, batch)
            return
        owner = next(g.value for g in segment.gradients if g.gradient == value)
        if value == self.parts[owner][0]:
            self.accumulate(owner, value, batch)

    def accumulate(self, owner: int, value: int, batch: int) -> None:
        """The first microbatch leaves the gradient, the others add to it."""
        if owner in self.grads:
            return
        self.grads.add(owner)
        if self.graph.values[owner].strides == self.graph.values[value].strides:
            self.last_to_end(self.storage[value], batch)
        else:
            self.add(self.size(self.storage[owner]))

    def share(self, shared: SharedGradient) -> None:
        """A gradient that several ranks share comes to those that do not add it up."""
        if shared.value not in self.grads:
            self.grads.add(shared.value)
            self.add(self.size(self.storage[shared.value]))
