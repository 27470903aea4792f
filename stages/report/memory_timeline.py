"""What a schedule keeps in memory, step by step: the memory line with its owners."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import takewhile

from tightfit.schemas.actions import ComputeLoss, OpAction, UpdateOnDevice, Wait
from tightfit.schemas.graph.ownership import loss_interface_values
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, GraphValue
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.effects import Effect, resident_after, schedule_effects
from tightfit.stages.simulate.simulate import resident_gradients

MEMORY_OWNERS = ("held", "gradients", "brought", "kept", "working")
"""Who memory belongs to: outputs and their gradients, finished parameter and input gradients,
parameters that live in an offload target, what the forward keeps for the backward, and everything
else (made and used up on the way)."""

LOSS_MODULE = "the loss"
"""What stands for a module where the loss made a storage."""


@dataclass(frozen=True)
class TimelineSegment:
    """The memory while one step runs: `bytes` by owner in the order of OWNERS, their sum being
    the most within the step; from `start` to `end` seconds."""

    start: float
    end: float
    op: int
    bytes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all owners."""
        return sum(self.bytes)


@dataclass(frozen=True)
class PeakOccupant:
    """Storages of one module and owner that are live at the peak."""

    module: str
    owner: str
    bytes: int
    storages: int


@dataclass(frozen=True)
class StepTimeline:
    """A schedule's memory over time.

    `segments` follow each other, one for each computation, update and wait for a transfer, of which
    the last two are those of the op before them; `boundary` is the second at which the forward
    ends. At the peak runs `peak_op`, and `occupants` hold the memory, largest first; what
    that op itself needs for its outputs and temporaries is `peak_temporary`. `kept` are the bytes
    by storage that wait at the boundary for the backward. `repeats` counts how often each op that
    is no view runs again, and `repeat_seconds` is what that takes. `levels` are the bytes that
    stay live from each step on, with the second at which it starts.
    """

    segments: list[TimelineSegment]
    boundary: float
    peak: int
    peak_at: float
    peak_op: int
    peak_temporary: int
    occupants: list[PeakOccupant]
    kept: dict[int, int]
    repeats: dict[int, int]
    repeat_seconds: dict[int, float]
    levels: list[tuple[float, int]]

    @property
    def seconds(self) -> float:
        """The time of the whole step."""
        return max((segment.end for segment in self.segments), default=0.0)


def build_timeline(
    graph: Graph,
    steps: Sequence[ScheduleStep],
    accumulate: bool = False,
    updates: OptimizerPlan | None = None,
) -> StepTimeline:
    """The memory line of a schedule of a graph (peaks, times and live bytes filled in), as it was
    simulated, with `accumulate` and `updates` or without."""
    owners = _schedule_independent_owners(graph)
    walked = list(schedule_effects(graph, steps, accumulate or resident_gradients(graph, updates)))
    forward = takewhile(lambda effect: not isinstance(effect.step.action, ComputeLoss), walked)
    waiting = resident_after(graph, forward)
    first = first_computation(steps)
    memory = first.memory if first else ""
    play = _TimelineBuilder(graph, owners, waiting, memory=memory)
    for value in sorted(updates.resident if updates else ()):
        play.bring(graph.values[value])
    for effect in walked:
        play.step(effect)
    top = play.top
    return StepTimeline(
        segments=play.segments,
        boundary=play.boundary,
        peak=top.total,
        peak_at=top.start,
        peak_op=top.op,
        peak_temporary=top.total - play.top_live,
        occupants=play.occupants,
        kept={
            storage: graph.storages[storage]
            for storage in waiting
            if owners.get(storage) not in ("held", "gradients")
        },
        repeats=play.repeats,
        repeat_seconds=play.repeat_seconds,
        levels=_memory_levels(steps, memory),
    )


def first_computation(steps: Sequence[ScheduleStep]) -> ScheduleStep | None:
    """The first step that runs an op, whose stream computes and whose memory is the device's; None
    where there is none. What is left of the step before can stand ahead of it."""
    return next((step for step in steps if isinstance(step.action, OpAction)), None)


def _memory_levels(steps: Sequence[ScheduleStep], memory: str) -> list[tuple[float, int]]:
    """The bytes of a memory from each step on. What a transfer takes is there from where it stands
    in the order, however late it begins."""
    levels: list[tuple[float, int]] = []
    first = first_computation(steps)
    stream, now = first.stream if first else "", 0.0
    for step in steps:
        if step.memory == memory:
            levels.append((step.start if step.stream == stream else now, step.live))
        now = step.end if step.stream == stream else now
    return levels


def _schedule_independent_owners(graph: Graph) -> dict[int, str]:
    """Storages whose owner does not depend on the schedule."""
    owners = {graph.values[entry.gradient].storage: "gradients" for entry in graph.gradients}
    owners.update({graph.values[value].storage: "held" for value in loss_interface_values(graph)})
    return owners


@dataclass
class _TimelineBuilder:
    graph: Graph
    owners: dict[int, str]
    waiting: dict[int, int]
    segments: list[TimelineSegment] = field(default_factory=list)
    occupants: list[PeakOccupant] = field(default_factory=list)
    repeats: dict[int, int] = field(default_factory=dict)
    repeat_seconds: dict[int, float] = field(default_factory=dict)
    live: dict[int, tuple[str, str]] = field(default_factory=dict)
    live_bytes: int = 0
    boundary: float = 0.0
    top: TimelineSegment = TimelineSegment(0.0, 0.0, NO_VALUE, (0,) * len(MEMORY_OWNERS))
    top_live: int = 0
    makers: dict[int, str] = field(default_factory=dict)
    memory: str = ""

    def __post_init__(self) -> None:
        self.fixed = self.graph.baseline_storages()
        self.views = self.graph.view_ops()
        self.sums = dict.fromkeys(MEMORY_OWNERS[:-1], 0)

    def step(self, effect: Effect) -> None:
        step, op = effect.step, effect.op
        loss = isinstance(step.action, ComputeLoss)
        if loss:
            self.boundary = step.start
        if effect.runs and op is not None:
            self.segment(step, op.id)
            if effect.repeated and op.id not in self.views:
                self.count(op.id, step.end - step.start)
        paused = isinstance(step.action, Wait | UpdateOnDevice) and step.end > step.start
        if paused and self.segments:
            self.segment(step, self.segments[-1].op)
        for storage in effect.drops:
            self.drop(storage)
        for value in effect.makes:
            module = LOSS_MODULE if loss or op is None else op.module
            self.make(self.graph.values[value].storage, effect.position, module)
        for value in effect.returns:
            storage = self.graph.values[value].storage
            self.bring(self.graph.values[value])
            self.make(storage, effect.position, self.makers.get(storage, ""))
        if step.memory == self.memory:
            self.live_bytes = step.live

    def count(self, op: int, seconds: float) -> None:
        self.repeats[op] = self.repeats.get(op, 0) + 1
        self.repeat_seconds[op] = self.repeat_seconds.get(op, 0.0) + seconds

    def segment(self, step: ScheduleStep, op: int) -> None:
        known = tuple(self.sums[owner] for owner in MEMORY_OWNERS[:-1])
        segment = TimelineSegment(
            step.start, step.end, op, (*known, max(step.peak - sum(known), 0))
        )
        self.segments.append(segment)
        if segment.total > self.top.total:
            self.top, self.top_live = segment, self.live_bytes
            self.occupants = self.peak_occupants()

    def make(self, storage: int, index: int, module: str) -> None:
        if storage in self.live or storage in self.fixed:
            return
        owner = self.owners.get(storage, "working")
        if owner == "working" and self.waiting.get(storage) == index:
            owner = "kept"
        self.live[storage] = (owner, module)
        self.makers[storage] = module
        if owner in self.sums:
            self.sums[owner] += self.graph.storages[storage]

    def bring(self, value: GraphValue) -> None:
        """A parameter comes from the memory where it lives."""
        if value.storage in self.fixed and value.storage not in self.live:
            self.live[value.storage] = ("brought", value.path)
            self.sums["brought"] += self.graph.storages[value.storage]

    def drop(self, storage: int) -> None:
        if storage in self.live:
            owner, _ = self.live.pop(storage)
            if owner in self.sums:
                self.sums[owner] -= self.graph.storages[storage]

    def peak_occupants(self) -> list[PeakOccupant]:
        groups: dict[tuple[str, str], list[int]] = {}
        for storage, (owner, module) in self.live.items():
            groups.setdefault((module, owner), []).append(self.graph.storages[storage])
        rows = [
            PeakOccupant(m, owner, sum(sizes), len(sizes)) for (m, owner), sizes in groups.items()
        ]
        return sorted(rows, key=lambda row: (-row.bytes, row.module, row.owner))


MemoryLevel = tuple[float, int]
"""From this second on, so many bytes are live."""

MIN_MATCHED_SHARE = 0.3
"""The least share of measured levels that must be found again; below, the line is stretched."""

MIN_MATCH_LENGTH = 3
"""Levels in a row that must agree to set the clock: single ones agree by chance."""


def align_timeline(
    measured: Sequence[MemoryLevel], predicted: Sequence[MemoryLevel], seconds: float
) -> list[MemoryLevel]:
    """The measured line on the predicted clock, which ends at `seconds`; times never fall.

    Between places that agree, time runs evenly. A line that agrees in too few places is stretched
    to the same length.
    """
    line = _level_changes(measured)
    if not line or line[-1][0] <= 0:
        return []
    anchors = _anchors(line, _level_changes(predicted)) or [(0.0, 0.0)]
    anchors = [(0.0, 0.0), *anchors, (line[-1][0], max(seconds, anchors[-1][1]))]
    starts = [when for when, _ in anchors]
    return [(_map_time(when, anchors, starts), level) for when, level in line]


def _level_changes(line: Sequence[MemoryLevel]) -> list[MemoryLevel]:
    """The points at which the level changes, and the last one."""
    kept = [
        point for index, point in enumerate(line) if index == 0 or point[1] != line[index - 1][1]
    ]
    return kept if not line or kept[-1] == line[-1] else [*kept, line[-1]]


def _anchors(
    measured: list[MemoryLevel], predicted: list[MemoryLevel]
) -> list[tuple[float, float]]:
    """Pairs of a measured and a predicted second at which the same bytes become live."""
    matcher = SequenceMatcher(
        None, [level for _, level in predicted], [level for _, level in measured], autojunk=False
    )
    pairs = [
        (measured[block.b + step][0], predicted[block.a + step][0])
        for block in matcher.get_matching_blocks()
        if block.size >= MIN_MATCH_LENGTH
        for step in range(block.size)
    ]
    return pairs if len(pairs) >= MIN_MATCHED_SHARE * min(len(measured), len(predicted)) else []


def _map_time(when: float, anchors: list[tuple[float, float]], starts: list[float]) -> float:
    after = min(max(bisect_right(starts, when), 1), len(anchors) - 1)
    (low, to_low), (high, to_high) = anchors[after - 1], anchors[after]
    share = (when - low) / (high - low) if high > low else 1.0
    return to_low + min(share, 1.0) * (to_high - to_low)
