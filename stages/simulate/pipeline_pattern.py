"""The simulator of patterns: plays a pipeline on paper, and refuses what could not run.

The simulator of pipelines looks at what depends on what, and at devices and links, which do one
thing at a time. The memory of each device is counted while the pipeline fills, over as many periods
as it takes to repeat, and while it drains. Sizes are bytes, times seconds.

Between two operations of a device memory changes in the order of issue alone. Operations that
begin at the same moment go in this order: those that take no time, older batches, forward before
backward.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tightfit.schemas.pipeline_pattern import PatternKind, PatternOperation, PipelinePattern
from tightfit.util.errors import ScheduleError

RELATIVE_TOLERANCE = 1e-9
"""In shares of a period, what a sum of times may be off by."""


@dataclass(frozen=True)
class StageMemory:
    """The bytes that a stage takes.

    `stored` are taken for each batch in flight, from the start of its forward to the end of its
    backward. `output` and its `gradient` are, while they wait for the next operation on the same
    device, and `forward` and `backward` while these run.
    """

    stored: int
    output: int = 0
    gradient: int = 0
    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class DeviceCapacity:
    """What devices have: `fixed` bytes that are there all the time (weights, buffers), and
    `memory` in all, by name; a device that is not named has no limit."""

    fixed: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PatternResult:
    """What the simulator says: the most bytes of each device, the most batches in flight of each
    stage, and the periods from the first forward of a batch to its last backward."""

    peaks: dict[str, int]
    in_flight: list[int]
    span: int


def simulate_pattern(
    pattern: PipelinePattern, stages: Sequence[StageMemory], room: DeviceCapacity
) -> PatternResult:
    """Plays a pattern, of which `stages` says what its stages take, in their order.

    Raises ScheduleError, in one sentence, where it could not run: an operation lacks or is there
    twice, a stage is on two devices, an operation comes before what it needs, two overlap, or a
    device has too little memory.
    """
    times = _OperationTimes.of(pattern)
    if len(stages) != pattern.stages:
        raise ScheduleError(f"the pattern has {pattern.stages} stages, {len(stages)} are known")
    _check_order(times)
    _check_overlaps(pattern)
    span = times.span()
    peaks, in_flight = _device_peaks(times, stages, room, span)
    for device, peak in peaks.items():
        limit = room.memory.get(device, peak)
        if peak > limit:
            raise ScheduleError(f"{device} needs {peak} bytes and has {limit}")
    return PatternResult(peaks, in_flight, span)


@dataclass(frozen=True)
class _OperationTimes:
    """When the operations of each batch begin."""

    pattern: PipelinePattern
    at: dict[tuple[PatternKind, int], dict[int, PatternOperation]]
    """By kind and stage, the operation that works on batches of each remainder modulo k."""

    @classmethod
    def of(cls, pattern: PipelinePattern) -> _OperationTimes:
        at: dict[tuple[PatternKind, int], dict[int, PatternOperation]] = defaultdict(dict)
        for operation in pattern.operations:
            turns = at[operation.operation, operation.stage]
            turn = operation.shift % pattern.batches
            if turn in turns:
                raise ScheduleError(f"the {operation} works on a batch twice")
            turns[turn] = operation
        for stage in range(1, pattern.stages + 1):
            for kind in _required_kinds(stage, at):
                missing = pattern.batches - len(at[kind, stage])
                if missing:
                    raise ScheduleError(f"the {kind} of stage {stage} skips batches")
        for stage in range(1, pattern.stages + 1):
            runs = [*at["forward", stage].values(), *at["backward", stage].values()]
            if len({run.device for run in runs}) > 1:
                raise ScheduleError(f"stage {stage} runs on two devices")
        times = cls(pattern, dict(at))
        _check_first_backward(pattern)
        return times

    def device(self, stage: int) -> str:
        """The device that a stage runs on."""
        return next(iter(self.at["forward", stage].values())).device

    def start(self, kind: PatternKind, stage: int, batch: int) -> float:
        """When the operation begins its work on a batch, in seconds from period 0 on."""
        k = self.pattern.batches
        operation = self.at[kind, stage][batch % k]
        return (batch - operation.shift) // k * self.pattern.period + operation.start

    def end(self, kind: PatternKind, stage: int, batch: int) -> float:
        """When the operation ends its work on a batch."""
        operation = self.at[kind, stage][batch % self.pattern.batches]
        return self.start(kind, stage, batch) + operation.duration

    def way(self) -> list[tuple[PatternKind, int]]:
        """The operations on one batch, in the order in which they need each other."""
        count = self.pattern.stages
        there: list[tuple[PatternKind, int]] = []
        for stage in range(1, count + 1):
            there += [("forward", stage), ("send", stage)]
        back: list[tuple[PatternKind, int]] = []
        for stage in range(count, 0, -1):
            back += [("receive", stage), ("backward", stage)]
        return [step for step in (*there, *back) if step in self.at]

    def span(self) -> int:
        """Periods that a batch is under way, rounded up."""
        period, k = self.pattern.period, self.pattern.batches
        way = self.way()
        longest = max(self.end(*way[-1], batch) - self.start(*way[0], batch) for batch in range(k))
        return int(longest // period) + 1


def _required_kinds(stage: int, at: Mapping[tuple[PatternKind, int], object]) -> list[PatternKind]:
    """The kinds of operations that a stage must have: transfers both ways where there is one."""
    kinds: list[PatternKind] = ["forward", "backward"]
    if ("send", stage) in at or ("receive", stage) in at:
        kinds += ["send", "receive"]
    return kinds


def _check_first_backward(pattern: PipelinePattern) -> None:
    runs = [
        operation
        for operation in pattern.operations
        if (operation.operation, operation.stage) == ("backward", 1)
    ]
    first = min(runs, key=lambda run: (run.start, run.shift))
    if first.shift != 0:
        raise ScheduleError(
            f"the first backward of stage 1 has shift {first.shift}, by convention it is 0"
        )


def _check_order(times: _OperationTimes) -> None:
    """Every operation begins when those it needs have ended; periods are alike, so that the
    batches of one are enough."""
    slack = RELATIVE_TOLERANCE * times.pattern.period
    for before, after in pairwise(times.way()):
        for batch in range(times.pattern.batches):
            if times.end(*before, batch) > times.start(*after, batch) + slack:
                raise ScheduleError(
                    f"the {after[0]} of stage {after[1]} begins before the {before[0]} of stage "
                    f"{before[1]} has ended"
                )


def _check_overlaps(pattern: PipelinePattern) -> None:
    """Each device and each link does one thing at a time, across the end of the period too."""
    slack = RELATIVE_TOLERANCE * pattern.period
    lanes: dict[str, list[PatternOperation]] = defaultdict(list)
    for operation in pattern.operations:
        lanes[operation.device].append(operation)
    for lane, operations in lanes.items():
        operations.sort(key=lambda operation: (operation.start, operation.duration))
        first, last = operations[0], operations[-1]
        for one, other in pairwise(operations):
            if one.start + one.duration > other.start + slack:
                raise ScheduleError(f"the {one} and the {other} overlap on {lane}")
        if last.start + last.duration > first.start + pattern.period + slack:
            raise ScheduleError(f"the {last} and the {first} overlap on {lane}")


@dataclass(frozen=True, order=True)
class _StageRun:
    """A run of a stage on a batch, in the order of issue."""

    time: float
    takes_time: bool
    batch: int
    rank: int
    kind: PatternKind = field(compare=False)
    stage: int = field(compare=False)


def _device_peaks(
    times: _OperationTimes, stages: Sequence[StageMemory], room: DeviceCapacity, span: int
) -> tuple[dict[str, int], list[int]]:
    """The most bytes of each device and batches in flight of each stage, from the first batch to
    the last of as many as fill the pipeline, repeat once, and drain it."""
    count = len(stages)
    runs: dict[str, list[_StageRun]] = defaultdict(list)
    for run in _stage_runs(times, (2 * span + 2) * times.pattern.batches):
        runs[times.device(run.stage)].append(run)
    peaks: dict[str, int] = {}
    in_flight = [0] * count
    for device, own in runs.items():
        there = {run.stage for run in own}
        memory = _DeviceMemory(room.fixed.get(device, 0), stages, there)
        for run in sorted(own):
            memory.run(run)
        peaks[device] = memory.peak
        for stage in there:
            in_flight[stage - 1] = memory.most[stage]
    return peaks, in_flight


def _stage_runs(times: _OperationTimes, batches: int) -> list[_StageRun]:
    """All runs of stages on the first batches, in the order of issue."""
    count = times.pattern.stages
    kinds: tuple[PatternKind, PatternKind] = ("forward", "backward")
    found = []
    for batch in range(batches):
        for stage in range(1, count + 1):
            for kind, rank in zip(kinds, (stage, 2 * count - stage), strict=True):
                takes_time = times.at[kind, stage][batch % times.pattern.batches].duration > 0
                found.append(
                    _StageRun(times.start(kind, stage, batch), takes_time, batch, rank, kind, stage)
                )
    return sorted(found)


def issue_order(pattern: PipelinePattern, batches: int) -> list[tuple[PatternKind, int, int]]:
    """The (forward or backward, stage, batch) of the first batches of a pattern, which begins with
    them and ends when they are done, in the order in which they begin."""
    return [
        (run.kind, run.stage, run.batch)
        for run in _stage_runs(_OperationTimes.of(pattern), batches)
    ]


def step_seconds(pattern: PipelinePattern, microbatches: int) -> float:
    """The seconds of a step of some microbatches, after which none is under way. Devices and links
    keep to the order of the pattern, and begin each operation as soon as they are free and what it
    needs is there, as the ranks of a pipeline do."""
    way = {step: place for place, step in enumerate(_OperationTimes.of(pattern).way())}
    rows = [
        (start, batch, way[operation.operation, operation.stage], operation)
        for start, batch, operation in unroll_pattern(pattern, microbatches)
    ]
    free: dict[str, float] = {}
    through = [0.0] * microbatches
    for _, batch, _, operation in sorted(rows, key=lambda row: row[:3]):
        begin = max(free.get(operation.device, 0.0), through[batch])
        free[operation.device] = through[batch] = begin + operation.duration
    return max(through)


def unroll_pattern(
    pattern: PipelinePattern, batches: int
) -> list[tuple[float, int, PatternOperation]]:
    """All operations on the first batches, each with the seconds at which it begins and its batch,
    by these; the first one begins at 0."""
    times = _OperationTimes.of(pattern)
    k = pattern.batches
    found = [
        (times.start(kind, stage, batch), batch, turns[batch % k])
        for (kind, stage), turns in times.at.items()
        for batch in range(batches)
    ]
    begin = min(start for start, _, _ in found)
    rows = [(start - begin, batch, operation) for start, batch, operation in found]
    return sorted(rows, key=lambda row: (row[0], row[1], row[2].stage))


class _DeviceMemory:
    """The bytes of one device, run by run."""

    def __init__(self, fixed: int, stages: Sequence[StageMemory], there: set[int]) -> None:
        self.bytes = self.peak = fixed
        self.stages, self.there = stages, there
        self.batches_in_flight: Counter[int] = Counter()
        self.most: Counter[int] = Counter()

    def run(self, run: _StageRun) -> None:
        """Counts what a run takes, and what it leaves."""
        stage, own = run.stage, self.stages[run.stage - 1]
        if run.kind == "forward":
            self.batches_in_flight[stage] += 1
            self.most[stage] = max(self.most[stage], self.batches_in_flight[stage])
            self.bytes += own.stored
            if stage - 1 in self.there:
                self.bytes -= self.stages[stage - 2].output
            self.peak = max(self.peak, self.bytes + own.forward)
            if stage + 1 in self.there:
                self.bytes += own.output
            return
        if stage + 1 in self.there:
            self.bytes -= own.gradient
        self.peak = max(self.peak, self.bytes + own.backward)
        self.bytes -= own.stored
        self.batches_in_flight[stage] -= 1
        if stage - 1 in self.there:
            self.bytes += self.stages[stage - 2].gradient
