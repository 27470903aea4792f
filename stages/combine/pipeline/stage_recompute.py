"""What a stage may store and compute again: its inner plans, by what they store for each batch in
flight, the most bytes of one batch, and time.

The forward of a stage keeps something of a batch, and its output leaves. The backward, which may
come batches later, makes again what is missing, as a persistent sequence of a chain does (S 2.3.4,
Z 2.5). No persistent plan that is worth anything is left out where no list is longer than it may
be. As for stages that keep everything (M 4.2.1), gradients between layers do not count, and the
output of a stage counts only while the forward of its last layer runs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.chain import Chain
from tightfit.schemas.sequence import NO_OPTION, ChainOperation
from tightfit.stages.combine.array_types import IntArray
from tightfit.stages.combine.chain.dp_table import checkpoint_operations
from tightfit.stages.combine.chain.options import (
    ChainProblem,
    PositionOption,
    PositionOptions,
    build_chain_problem,
)
from tightfit.stages.combine.chain.simulate import ChainSimulator
from tightfit.stages.combine.pipeline.layers import PipelineLayers, StageOption, StageOptionTable
from tightfit.util.errors import ConfigError, ScheduleError

SAVED, PEAK, TICKS, FORWARD, WAY, SPLIT, LEFT, RIGHT = range(8)
"""Columns of a row: bytes stored from forward to backward and the most bytes at any moment, neither
with the segment's input; ticks of all, and of the forward; the way that the first position is run
in, or one of the two below; the last position that is passed; rows of the parts."""
PASSES, DROPS = -1, -2
"""The first positions are passed, and run again at the end; the forward keeps nothing."""
MAX_ROWS = 32
"""Rows of a segment at most, where none are asked for."""
MAX_LAYERS = 400
"""Layers of a chain at most."""
GRID_CELLS = 16
"""By saved bytes and by the peak, of rows that are too many."""


class StageRecomputePlanner:
    """The inner plans of all stages of a chain; `most` rows are kept of each segment. `options` are
    those of blocks, by the labels of positions; the others keep everything or nothing. Raises
    ConfigError for a chain that is too long, and for options that keep what is not counted."""

    def __init__(
        self,
        chain: Chain,
        layers: PipelineLayers,
        options: Mapping[str, list[BlockOption]] | None = None,
        most: int = MAX_ROWS,
    ) -> None:
        if layers.count > MAX_LAYERS:
            raise ConfigError(
                f"the chain has {layers.count} layers, and stages compute again in chains of up to "
                f"{MAX_LAYERS}"
            )
        self.layers, self.most = layers, most
        found = build_chain_problem(_without_gradients(chain), options)
        if found.always_resident > chain.a_0:
            raise ConfigError("options that keep the state of random numbers are not for pipelines")
        self.ways = found.positions
        self.inputs = [chain.a_0, *(row.a for row in chain.positions)]
        kinds: dict[str, int] = {}
        self.kinds = [kinds.setdefault(repr(one), len(kinds)) for one in self.ways]
        self._rows: dict[tuple[str, tuple[int, ...]], IntArray] = {}

    def rows(self, first: int, last: int) -> IntArray:
        """The inner plans of a stage as rows, none of which another equals or betters in all."""
        return self._known("stage", first, last)

    def plan(self, first: int, last: int, row: int) -> StageOption:
        """The inner plan of a row."""
        found = self.rows(first, last)[row]
        there, back = self._stage_sequence(first, last, row)
        forward, ticks = int(found[FORWARD]), int(found[TICKS])
        stored = int(found[SAVED]) + self.inputs[first - 1]
        work = int(found[PEAK] - found[SAVED])
        return StageOption(forward, ticks - forward, stored, work, tuple(there), tuple(back))

    def check(self, first: int, last: int, plan: StageOption) -> None:
        """Raises ScheduleError where a plan stores or takes more than it says, or cannot run."""
        ways = [self._position(position, last, True) for position in range(first, last + 1)]
        player = ChainSimulator(ChainProblem(ways, self.inputs[first - 1], loss=False))
        where = f"the stage {first} to {last}"
        for step, action in enumerate([*plan.there, None, *plan.back]):
            if action is None:
                player.turn(where)
                if player.stored > plan.stored:
                    raise ScheduleError(f"{where} stores {player.stored} bytes, not {plan.stored}")
            else:
                player.play(step, replace(action, block=action.block - first + 1), None)
        if player.gradient != 0 or player.peak > plan.stored + plan.work:
            raise ScheduleError(f"{where} ends too early or takes {player.peak} bytes")

    def _known(self, family: str, first: int, last: int) -> IntArray:
        """Rows by family: "stage", "end" of what a stage runs after its forward, "inner" of what
        comes before other layers. Segments of equal positions share them."""
        key = (family, tuple(self.kinds[first - 1 : last]))
        if key not in self._rows:
            stage = family == "stage"
            found = self._stage(first, last) if stage else self._again(first, last, family == "end")
            self._rows[key] = _pareto_rows(found, self.most, 3 if stage else 2)
        return self._rows[key]

    def _again(self, first: int, last: int, end: bool) -> IntArray:
        """Forward and backward of a segment once the gradient of its last output is there."""
        family = "end" if end else "inner"
        rows = []
        for number, way in enumerate(self._position(first, last, end).ways):
            right = _NOTHING if first == last else self._known(family, first + 1, last)
            rows.append(self._kept(number, way, right, False))
        for split in range(first, last):
            right, left = self._known(family, split + 1, last), self._known("inner", first, split)
            rows.append(self._passed(first, split, right, left, False))
        return np.concatenate(rows)

    def _stage(self, first: int, last: int) -> IntArray:
        """Forward of a segment, and its backward after a while."""
        rows = []
        for number, way in enumerate(self._position(first, last, True).ways):
            right = _NOTHING if first == last else self._known("stage", first + 1, last)
            rows.append(self._kept(number, way, right, True))
        for split in range(first, last):
            right, left = self._known("stage", split + 1, last), self._known("inner", first, split)
            rows.append(self._passed(first, split, right, left, True))
        ended = self._known("end", first, last)
        dropped = ended.copy()
        ticks, peak = self._pass(first, last, last)
        dropped[:, SAVED] = 0
        dropped[:, PEAK] = np.maximum(ended[:, PEAK], peak)
        dropped[:, TICKS] += ticks
        dropped[:, FORWARD], dropped[:, WAY] = ticks, DROPS
        dropped[:, LEFT] = np.arange(len(ended))
        return np.concatenate([*rows, dropped])

    def _kept(self, number: int, way: PositionOption, right: IntArray, saves: bool) -> IntArray:
        """The first position is run in a way, then the others."""
        rows = right.copy()
        own = max(way.forward_peak, way.backward_peak)
        rows[:, PEAK] = np.maximum(right[:, PEAK] + way.save, own)
        rows[:, SAVED] = right[:, SAVED] + way.save if saves else 0
        forward = self._ticks(way.forward_seconds)
        rows[:, TICKS] += forward + self._ticks(way.backward_seconds)
        rows[:, FORWARD] += forward
        rows[:, WAY], rows[:, RIGHT] = number, np.arange(len(right))
        return rows

    def _passed(
        self, first: int, split: int, right: IntArray, left: IntArray, saves: bool
    ) -> IntArray:
        """Positions first..split are passed, then come the others beside the output of `split`,
        then these again."""
        ticks, peak = self._pass(first, split, 0)
        output = self.ways[split - 1].output
        ahead = np.repeat(right, len(left), axis=0)
        behind = np.tile(left, (len(right), 1))
        rows = ahead.copy()
        rows[:, PEAK] = np.maximum(np.maximum(ahead[:, PEAK] + output, behind[:, PEAK]), peak)
        rows[:, SAVED] = ahead[:, SAVED] + output if saves else 0
        rows[:, TICKS] += behind[:, TICKS] + ticks
        rows[:, FORWARD] += ticks
        rows[:, WAY], rows[:, SPLIT] = PASSES, split - first
        rows[:, RIGHT] = np.repeat(np.arange(len(right)), len(left))
        rows[:, LEFT] = np.tile(np.arange(len(left)), len(right))
        return rows

    def _pass(self, first: int, last: int, end: int) -> tuple[int, int]:
        """Ticks and the most bytes of forwards that keep the output of the last one alone; `end` is
        the last position of the stage."""
        passed = [self._position(position, end, True) for position in range(first, last + 1)]
        before = [0, *(one.output for one in passed)]
        peak = max(size + one.pass_peak for size, one in zip(before, passed, strict=False))
        return sum(self._ticks(one.pass_seconds) for one in passed), peak

    def _position(self, position: int, last: int, end: bool) -> PositionOptions:
        """A position; the output of the `last` one of a stage is not stored."""
        one = self.ways[position - 1]
        if position != last or not end:
            return one
        return replace(one, output=0, ways=[_without_output(way, one.output) for way in one.ways])

    def _ticks(self, seconds: float) -> int:
        return math.ceil(seconds / self.layers.tick)

    def _stage_sequence(
        self, first: int, last: int, row: int
    ) -> tuple[list[ChainOperation], list[ChainOperation]]:
        found = self.rows(first, last)[row]
        way, left = int(found[WAY]), int(found[LEFT])
        if way == DROPS:
            return checkpoint_operations(first, last), self._sequence("end", first, last, left)
        split = int(found[SPLIT]) + first
        behind = first + 1 if way >= 0 else split + 1
        there: list[ChainOperation] = []
        back: list[ChainOperation] = []
        if behind <= last:
            there, back = self._stage_sequence(behind, last, int(found[RIGHT]))
        if way >= 0:
            return [self._forward(first, way), *there], [*back, ChainOperation("B", first)]
        passed = self._sequence("inner", first, split, left)
        return [*checkpoint_operations(first, split), *there], [*back, *passed]

    def _sequence(self, family: str, first: int, last: int, row: int) -> list[ChainOperation]:
        found = self._known(family, first, last)[row]
        way, split = int(found[WAY]), int(found[SPLIT]) + first
        behind = first + 1 if way >= 0 else split + 1
        rest = []
        if behind <= last:
            rest = self._sequence(family, behind, last, int(found[RIGHT]))
        if way >= 0:
            return [self._forward(first, way), *rest, ChainOperation("B", first)]
        passed = self._sequence("inner", first, split, int(found[LEFT]))
        return [*checkpoint_operations(first, split), *rest, *passed]

    def _forward(self, position: int, way: int) -> ChainOperation:
        option = self.ways[position - 1].ways[way].option
        return ChainOperation("F_all" if option == NO_OPTION else "F", position, option)


def _without_output(way: PositionOption, output: int) -> PositionOption:
    """A way whose output leaves. Only positions that keep everything are known to do without the
    output in the backward, too."""
    there = output if way.option == NO_OPTION else 0
    return replace(
        way, save=max(way.save - output, 0), backward_peak=max(way.backward_peak - there, 0)
    )


_NOTHING: IntArray = np.zeros((1, 8), np.int64)


def _without_gradients(chain: Chain) -> Chain:
    rows = [replace(row, delta=0, grad=0) for row in chain.positions]
    return Chain(rows, chain.a_0, 0)


def _pareto_rows(rows: IntArray, most: int, figures: int) -> IntArray:
    """Rows that no other one equals or betters in saved bytes, peak and ticks, the fastest first.

    Where two `figures` count, these are peak and ticks. Of more than `most` rows those stay that
    have the fewest bytes of each kind, and others that are spread.
    """
    rows = rows[np.lexsort((rows[:, PEAK], rows[:, SAVED], rows[:, TICKS]))]
    if figures == 2:
        lowest = np.minimum.accumulate(rows[:, PEAK])
        better = np.concatenate([[True], rows[1:, PEAK] < lowest[:-1]])
        return _sample_rows(rows[better], most)
    if len(rows) > 8 * most:
        rows = _thin_rows(rows)
    return _sample_rows(
        rows[_pareto_positions(rows[:, SAVED].tolist(), rows[:, PEAK].tolist())], most
    )


def _pareto_positions(saved: list[int], peaks: list[int]) -> list[int]:
    """The rows that no earlier one equals or betters in both."""
    kept: list[int] = []
    stairs: list[int] = []
    heights: list[int] = []
    for number, (size, peak) in enumerate(zip(saved, peaks, strict=True)):
        place = bisect_right(stairs, size)
        if place and heights[place - 1] <= peak:
            continue
        kept.append(number)
        end = place
        while end < len(heights) and heights[end] >= peak:
            end += 1
        stairs[place:end], heights[place:end] = [size], [peak]
    return kept


def _thin_rows(rows: IntArray) -> IntArray:
    """The fastest row of each place by saved bytes and peak, and that with the fewest of each."""
    places = []
    for figure in (SAVED, PEAK):
        values = rows[:, figure]
        low, high = int(values.min()), int(values.max())
        places.append((values - low) * GRID_CELLS // (high - low + 1))
    _, first = np.unique(places[0] * GRID_CELLS + places[1], return_index=True)
    ends = [int(rows[:, figure].argmin()) for figure in (SAVED, PEAK)]
    return rows[np.unique([*first, *ends])]


def _sample_rows(rows: IntArray, most: int) -> IntArray:
    if len(rows) <= most:
        return rows
    ends = [int(rows[:, figure].argmin()) for figure in (SAVED, PEAK)]
    even = np.linspace(0, len(rows) - 1, most - 2).round().astype(np.int64)
    return rows[np.unique([*even, *ends])]


def build_stage_options(inner: StageRecomputePlanner, layers: PipelineLayers) -> StageOptionTable:
    """The menu of all stages: their inner plans, and to keep everything as M counts it; the fastest
    first."""
    length = layers.count
    begin = np.zeros((length + 2, length + 2), np.int64)
    parts: list[IntArray] = []
    rows = 0
    for first in range(length, 0, -1):
        for last in range(first, length + 1):
            begin[first, last] = rows
            parts.append(_stage_rows(inner, layers, first, last))
            rows += len(parts[-1])
        begin[first, length + 1] = rows
    whole = np.concatenate(parts)
    ticks, stored, work, numbers = (np.ascontiguousarray(whole[:, n]) for n in range(4))

    def plan(first: int, last: int, number: int) -> StageOption:
        row = int(numbers[number])
        return inner.plan(first, last, row) if row >= 0 else layers.whole(first, last)

    return StageOptionTable(begin, ticks, stored, work, plan)


def _stage_rows(
    inner: StageRecomputePlanner, layers: PipelineLayers, first: int, last: int
) -> IntArray:
    """(ticks, stored bytes, further bytes, row) of the plans of a stage; row -1 keeps all."""
    rows = inner.rows(first, last)
    plain = layers.whole(first, last)
    own = [plain.forward + plain.backward, plain.stored, plain.work, -1]
    stored = rows[:, SAVED] + inner.inputs[first - 1]
    work = rows[:, PEAK] - rows[:, SAVED]
    keys = np.stack([rows[:, TICKS], stored, work, np.arange(len(rows))], axis=1)
    whole = np.concatenate([np.array([own], np.int64), keys])
    return whole[np.argsort(whole[:, 0], kind="stable")]
