"""The 1-periodic schedule of an allocation, contiguous or not: the integer program of S chapter 6
with the allocation fixed, in another form (M 4.3).

Times are counted in periods. So the unknown is the rate r, periods a unit of time, and nothing is
multiplied. Operation x begins at phase p_x on batch 0, at p_x + i on batch i, and takes d_x r. For
two operations on a lane, K_xy says on which batch y begins first after x has worked on batch 0:

    p_x + d_x r <= p_y + K_xy   and   p_y + K_xy + d_y r <= p_x + 1

How many batches are in flight while x runs are sums of these whole numbers, and so is memory. The
solution's whole numbers are kept, and the shortest period that they allow is computed exactly: the
largest ratio of work to periods around a cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from tightfit.stages.combine.milp import MilpBuilder, MilpSolution, SolverLimits, solve_milp
from tightfit.stages.combine.pipeline.allocation import Allocation, PatternTiming, build_pattern
from tightfit.stages.simulate.pipeline_pattern import simulate_pattern
from tightfit.util.errors import ScheduleError

LinearSum = tuple[dict[int, float], float]
"""Columns with their weights, and a constant."""


@dataclass(frozen=True)
class PeriodicSchedule:
    """A timing, None where none was found, and `bound`, the ticks that no period is below; `clock`
    says that the clock ended the search."""

    timing: PatternTiming | None
    bound: int
    clock: bool = False


@dataclass(frozen=True)
class _PeriodicOperation:
    """Forward or backward of a task; `ticks` on its lane, `work` bytes while it runs."""

    number: int
    task: int
    stage: int
    transfer: bool
    forward: bool
    lane: str
    ticks: int
    work: int


def schedule_periodic(
    allocation: Allocation, memory: int, below: int, limits: SolverLimits, start: bool = True
) -> PeriodicSchedule:
    """The 1-periodic timing of an allocation with the least period under `below` ticks that fits
    `memory` bytes a device. Stages run whole; `Allocation.layer_by_layer` makes one of each layer.

    The bound is `below` where no such timing exists. With `start` the search begins from one batch
    after the other, which is a solution where `below` allows it.
    """
    least = max(allocation.load, 1)
    if least >= below:
        return PeriodicSchedule(None, below)
    program = _PeriodicProgram(allocation, memory, least, below)
    found = program.solve(limits, start)
    bound = min(below, int(least / -found.bound)) if found.bound < 0 else below
    bound = max(bound, least)
    if not len(found.values):
        return PeriodicSchedule(None, bound, found.clock)
    sizes, room = allocation.bytes(), allocation.room(memory)
    for apart in (0, 1):
        timing = program.timing(found.values.tolist(), apart)
        if timing is None or timing.period >= below:
            break
        try:
            simulate_pattern(build_pattern(allocation, timing), sizes, room)
        except ScheduleError:
            continue
        return PeriodicSchedule(timing, min(bound, timing.period), found.clock)
    return PeriodicSchedule(None, bound, found.clock)


class _PeriodicProgram:
    def __init__(self, allocation: Allocation, memory: int, least: int, below: int) -> None:
        self.allocation, self.memory, self.least = allocation, memory, least
        self.tasks = allocation.tasks
        self.operations = _operations(allocation)
        self.program = MilpBuilder()
        self.slowest = least / max(below - 1, least)
        self.rate = self.program.variable(self.slowest, 1.0, cost=-1.0)
        self.most = 2 * len(self.tasks) + 1
        self.phase = [
            self.program.variable(0.0, 0.0 if x.number == 0 else self.most) for x in self.operations
        ]
        self.lanes: dict[str, list[_PeriodicOperation]] = defaultdict(list)
        for x in self.operations:
            self.lanes[x.lane].append(x)
        self.first: dict[tuple[int, int], int] = {}
        """K of operations x < y on a lane, by their numbers."""
        self._order()
        for lane in self.lanes.values():
            self._lane(lane)
        for device, name in enumerate(allocation.names):
            if name in self.lanes:
                self._memory(self.lanes[name], memory - allocation.fixed()[device])

    def _share(self, x: _PeriodicOperation) -> float:
        """The ticks of an operation in periods at rate 1."""
        return x.ticks / self.least

    def _order(self) -> None:
        """Each operation on a batch begins after the one before it has ended."""
        for x, y in pairwise(self.operations):
            weights = {self.phase[y.number]: 1.0, self.phase[x.number]: -1.0}
            self.program.row_at_least(0.0, {**weights, self.rate: -self._share(x)})

    def _lane(self, lane: list[_PeriodicOperation]) -> None:
        """One operation at a time; x is before y on the same batch, so that K_xy <= 0."""
        for x, y in combinations(lane, 2):
            column = self.program.variable(-self.most, 0.0, integral=True)
            self.first[x.number, y.number] = column
            weights = {self.phase[y.number]: 1.0, self.phase[x.number]: -1.0, column: 1.0}
            self.program.row_at_least(0.0, {**weights, self.rate: -self._share(x)})
            self.program.row_at_most(1.0, {**weights, self.rate: self._share(y)})
        for a, b, c in combinations([x.number for x in lane], 3):
            weights = {self.first[a, b]: 1.0, self.first[b, c]: 1.0, self.first[a, c]: -1.0}
            self.program.row_at_least(0.0, weights)
            self.program.row_at_most(1.0, weights)

    def _begun(self, x: _PeriodicOperation, y: _PeriodicOperation) -> LinearSum:
        """The last batch on which y has begun when x runs on batch 0."""
        if x.number == y.number:
            return {}, 0.0
        if x.number < y.number:
            return {self.first[x.number, y.number]: 1.0}, -1.0
        return {self.first[y.number, x.number]: -1.0}, 0.0

    def _ended(self, x: _PeriodicOperation, y: _PeriodicOperation) -> LinearSum:
        """The last batch on which y has ended when x runs on batch 0."""
        return ({}, -1.0) if x.number == y.number else self._begun(x, y)

    def _memory(self, lane: list[_PeriodicOperation], room: int) -> None:
        """What a device stores while any of its operations runs is at most its room."""
        sizes = self.allocation.bytes()
        there = {(x.stage, x.forward): x for x in lane}
        unit = max(room, 1)
        for x in lane:
            weights: dict[int, float] = defaultdict(float)
            left = float(room - x.work)
            parts = []
            for stage in sorted({x.stage for x in lane}):
                own = sizes[stage - 1]
                forward, backward = there[stage, True], there[stage, False]
                parts.append((own.stored, self._begun(x, forward), self._ended(x, backward)))
                if (stage + 1, True) in there:
                    after, before = there[stage + 1, True], there[stage + 1, False]
                    parts.append((own.output, self._ended(x, forward), self._begun(x, after)))
                    parts.append((own.gradient, self._ended(x, before), self._begun(x, backward)))
            for size, (more, plus), (fewer, minus) in parts:
                left -= size * (plus - minus)
                for column, weight in more.items():
                    weights[column] += size * weight
                for column, weight in fewer.items():
                    weights[column] -= size * weight
            scaled = {column: weight / unit for column, weight in weights.items() if weight}
            self.program.row_at_most(left / unit, scaled)

    def solve(self, limits: SolverLimits, start: bool) -> MilpSolution:
        """Solves it, from one batch after the other where that is allowed."""
        together = max(sum(x.ticks for x in self.operations), self.least)
        values: list[float] = []
        if start and self.least / together >= self.slowest:
            values = [0.0] * len(self.program.cost)
            values[self.rate] = self.least / together
            at = 0.0
            for x in self.operations:
                values[self.phase[x.number]] = at / together
                at += x.ticks
        return solve_milp(self.program.sparse(), limits, list(enumerate(values)))

    def timing(self, values: Sequence[float], apart: int) -> PatternTiming | None:
        """The timing with the shortest period that the whole numbers of a solution allow, None
        where they allow none. Operations that take no time begin `apart` ticks before the next of
        their lane."""
        arcs: list[tuple[int, int, int, int]] = []
        for x, y in pairwise(self.operations):
            arcs.append((x.number, y.number, x.ticks, 0))
        for lane in self.lanes.values():
            for x, y in combinations(lane, 2):
                first = round(values[self.first[x.number, y.number]])
                arcs.append((x.number, y.number, max(x.ticks, apart), first))
                arcs.append((y.number, x.number, max(y.ticks, apart), 1 - first))
        found = shortest_period(len(self.operations), arcs, self.least)
        if found is None:
            return None
        period, times = found
        return self.timed(period, times)

    def timed(self, period: int, times: list[int]) -> PatternTiming:
        """The timing with operations at these ticks, the first one at 0."""
        forward = [0] * len(self.tasks)
        backward = [0] * len(self.tasks)
        for x in self.operations:
            (forward if x.forward else backward)[x.task] = times[x.number] - times[0]
        return PatternTiming(period, forward, backward)


def _operations(allocation: Allocation) -> list[_PeriodicOperation]:
    """Forwards in order, then backwards in the other."""
    tasks, sizes = allocation.tasks, allocation.bytes()
    operations: list[_PeriodicOperation] = []
    for forward in (True, False):
        numbers = range(len(tasks)) if forward else range(len(tasks) - 1, -1, -1)
        for number in numbers:
            task = tasks[number]
            own = sizes[task.stage - 1]
            work = 0 if task.transfer else own.forward if forward else own.backward
            ticks = task.forward if forward else task.backward
            operations.append(
                _PeriodicOperation(
                    len(operations),
                    number,
                    task.stage,
                    task.transfer,
                    forward,
                    task.lane,
                    ticks,
                    work,
                )
            )
    return operations


def shortest_period(
    count: int, arcs: list[tuple[int, int, int, int]], least: int
) -> tuple[int, list[int]] | None:
    """The least whole period from `least` on, and times, such that for every arc (x, y, ticks,
    periods) y begins, so many periods later, at least so many ticks after x; None where there is
    none."""
    period = least
    while True:
        times = [0] * count
        cause: list[int] = [-1] * count
        changed = -1
        for _ in range(count + 1):
            changed = -1
            for number, (x, y, ticks, periods) in enumerate(arcs):
                reached = times[x] + ticks - periods * period
                if reached > times[y]:
                    times[y], cause[y], changed = reached, number, y
            if changed < 0:
                return period, times
        node = changed
        for _ in range(count):
            node = arcs[cause[node]][0]
        ticks, periods, end = 0, 0, node
        while True:
            x, _, more, further = arcs[cause[node]]
            ticks, periods, node = ticks + more, periods + further, x
            if node == end:
                break
        if periods <= 0:
            return None
        period = -(-ticks // periods)
