"""POFO: what to keep, what to run again and what leaves, together (S ch. 4).

The forward phase is a program over labels, as in S 4.2.1, at true sizes: a position with what stays
on the device, what is to be sent still and what has to be back there. The backward phase is the
table of `spans`. S keeps slots of memory in both phases. Here and there communications are
fractional and in step with the loss (Assumptions 4). Places of transfers are found afterwards, by
the semantics of issue order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tightfit.schemas.sequence import ChainOperation, StoredItem
from tightfit.stages.combine.array_types import IntArray, SecondsArray
from tightfit.stages.combine.chain.discretize import SegmentMemory, choose_slot_size
from tightfit.stages.combine.chain.dp_table import (
    SegmentSteps,
    checkpoint_operations,
    position_operations,
)
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain_offload.fractional_transfers import MAX_BANDWIDTH

MAX_SPAN_TABLE_SIZE = 24_000_000
"""Numbers of a table; where there would be more, it has fewer slots."""


class SpanChain(NamedTuple):
    """A chain in `room` slots of `unit` bytes, arrays by position 0..L+1; `rate` are the slots
    that the link moves a second.

    `output` and `kept` are whole slots; all else is compared as it is. `all_peak` is that of a
    forward that keeps, `back_peak` that of a backward without gradients of later positions. With
    the gradient of the output, these are `beside` a span that ends there, and alone `grown`.
    `pass_peak[s, r]` is the most that passing on from s to r needs, and `lag_peak[s, r]` the same
    where memory fills up to the end of it at the rate of the link. `passes` are the seconds of
    forwards up to a position, `once` those of all up to it with their backwards.
    """

    unit: int
    room: int
    rate: float
    output: IntArray
    kept: IntArray
    forward: SecondsArray
    backward: SecondsArray
    all_peak: SecondsArray
    back_peak: SecondsArray
    beside: SecondsArray
    later_gradients: SecondsArray
    pass_peak: SecondsArray
    lag_peak: SecondsArray
    passes: SecondsArray
    once: SecondsArray

    @property
    def length(self) -> int:
        """The positions, the loss included."""
        return len(self.output) - 1


def build_span_chain(ways: ChainProblem, limit: int, slots: int, bandwidth: float) -> SpanChain:
    """The chain for budgets up to `limit` bytes, the chain's input counted."""
    length = len(ways)
    needs, first = SegmentMemory(ways), [one.ways[0] for one in ways.positions]
    fitting = int((MAX_SPAN_TABLE_SIZE / (length * (length + 1) / 2)) ** 0.5) - 1
    unit, _ = choose_slot_size(
        [*needs.stored(), ways.always_resident],
        needs.other_sizes(),
        limit,
        max(2, min(slots, fitting)),
    )
    stored = np.array([ways.always_resident, *(way.save for way in first)], dtype=np.int64)
    outputs = np.array(
        [ways.always_resident, *(one.output for one in ways.positions)], dtype=np.int64
    )
    forward = np.array([0.0, *(way.forward_seconds for way in first)])
    backward = np.array([0.0, *(way.backward_seconds for way in first)])
    rate = min(bandwidth, MAX_BANDWIDTH) / unit
    pass_peak, lag_peak = _pass_peaks(ways, forward, unit, rate)
    return SpanChain(
        unit=unit,
        room=limit // unit,
        rate=rate,
        output=_round_sizes(outputs, unit),
        kept=_round_sizes(stored, unit),
        forward=forward,
        backward=backward,
        all_peak=np.array([0, *(way.forward_peak for way in first)]) / unit,
        back_peak=np.array([0, *(way.backward_peak for way in first)]) / unit,
        beside=needs.beside / unit,
        later_gradients=needs.later_gradients / unit,
        pass_peak=pass_peak,
        lag_peak=lag_peak,
        passes=np.cumsum(forward),
        once=np.cumsum(forward + backward),
    )


def _round_sizes(sizes: IntArray, unit: int) -> IntArray:
    """Sizes in slots, so that those of neighbors together are off by a slot at most."""
    return np.diff(np.rint(np.cumsum(sizes) / unit), prepend=0).astype(np.int64)


def _pass_peaks(
    ways: ChainProblem, forward: SecondsArray, unit: int, rate: float
) -> tuple[SecondsArray, SecondsArray]:
    length = len(ways)
    most = np.zeros((length + 2, length + 1))
    late = np.zeros((length + 2, length + 1))
    for s in range(1, length + 1):
        found = lag = -np.inf
        for r in range(s, length + 1):
            source = ways.at(r - 1).output if r > s else 0
            need = (ways.at(r).pass_peak + source) / unit
            found, lag = max(found, need), max(lag - rate * forward[r], need)
            most[s, r], late[s, r] = found, lag
    return most, late


@dataclass(frozen=True)
class SpanTable:
    """The table of a chain: `cost[cell(s, t), m, d]` in seconds, infinite where m slots, or m of
    which d are taken, do not do."""

    chain: SpanChain
    cost: SecondsArray

    def sequence(self, first: int, last: int, room: int, due: float) -> SegmentSteps:
        """The operations of a span within `room` slots while `due` slots come back."""
        from tightfit.stages.combine.chain_offload.pofo_compiled import choose_split

        operations: SegmentSteps = []
        pending: list[ChainOperation | tuple[int, int, int, float]] = [(first, last, room, due)]
        while pending:
            item = pending.pop()
            if isinstance(item, ChainOperation):
                operations.append(item)
                continue
            s, t, m, d = item
            split, inner_due = choose_split(self.cost, self.chain, s, t, m, d)
            following: list[ChainOperation | tuple[int, int, int, float]] = []
            if split == 0:
                ran = [
                    step
                    for step in position_operations(s, -1, 0, [])
                    if isinstance(step, ChainOperation)
                ]
                rest = [(s + 1, t, m - int(self.chain.kept[s]), inner_due)] if s < t else []
                following = [ran[0], *rest, ran[1]]
            else:
                inner = (split + 1, t, m - int(self.chain.output[split]), inner_due)
                following = [*checkpoint_operations(s, split), inner, (s, split, m, d)]
            pending.extend(reversed(following))
        return operations


def build_span_table(ways: ChainProblem, limit: int, slots: int, bandwidth: float) -> SpanTable:
    """The table of all spans of a chain for budgets up to `limit` bytes, in about `slots` slots."""
    from tightfit.stages.combine.chain_offload.pofo_compiled import fill_span_table

    chain = build_span_chain(ways, limit, slots, bandwidth)
    width, rows = chain.room + 1, chain.length * (chain.length + 1) // 2
    cost = np.full((rows, width, width), np.inf)
    fill_span_table(cost, chain)
    return SpanTable(chain, cost)


MAX_LABELS = 600
"""Labels of a position that are kept."""


@dataclass(frozen=True)
class RelaxedPlan:
    """A sequence without transfers, what leaves between the phases, and the `seconds` of both with
    fractional communications."""

    sequence: list[ChainOperation]
    leaves: list[StoredItem]
    seconds: float


def solve_pofo(
    ways: ChainProblem,
    spans: SpanTable,
    budget: int,
    limit: float,
    most: int = 1,
    labels: int = MAX_LABELS,
) -> list[RelaxedPlan]:
    """The fastest plans within `budget` bytes, which the spans were made for, that take less than
    `limit` seconds; at most `most`, fastest first, none where there is none."""
    return list(_ForwardProgram(ways, spans, budget, limit, labels).plans(most))


class _ForwardProgram:
    """The labels of all positions."""

    def __init__(
        self, ways: ChainProblem, spans: SpanTable, budget: int, limit: float, labels: int
    ) -> None:
        from tightfit.stages.combine.chain_offload.pofo_compiled import (
            PofoLabels,
            PofoLimits,
            PofoSizes,
            propagate_labels,
        )

        chain = spans.chain
        self.ways, self.spans, self.chain = ways, spans, chain
        self.budget = budget / chain.unit
        first = [one.ways[0].save for one in ways.positions]
        self.stored = np.array([ways.always_resident, *first]) / chain.unit
        outputs = [ways.always_resident, *(one.output for one in ways.positions)]
        self.outputs = np.array(outputs) / chain.unit
        length = chain.length
        self.labels = np.zeros((2 * (length + 2) * labels + 1, 4))
        self.trail = np.zeros((len(self.labels), 2), dtype=np.int64)
        self.ranges = np.zeros((2 * (length + 2), 2), dtype=np.int64)
        self.ranges[2] = 0, 1
        spread = PofoLabels(self.labels, self.trail, self.ranges)
        sizes = PofoSizes(_early_pass_needs(self), self.outputs, self.stored)
        propagate_labels(spread, spans.cost, chain, sizes, PofoLimits(self.budget, limit, labels))
        self.limit = limit

    def plans(self, most: int) -> Iterator[RelaxedPlan]:
        """The plans of the fastest labels of the loss."""
        totals = self._totals()
        for seconds, index in sorted(totals)[:most]:
            sequence, leaves = self._walked(index)
            yield RelaxedPlan(sequence, leaves, seconds)

    def _totals(self) -> list[tuple[float, int]]:
        """The seconds with each label of the loss (S 4.2.2)."""
        from tightfit.stages.combine.chain_offload.pofo_compiled import (
            DUE,
            SENT,
            TIME,
            keep_idle_seconds,
        )

        chain, last = self.chain, self.chain.length
        need_f = float(chain.all_peak[last] + chain.beside[last])
        need_b = float(chain.back_peak[last] + chain.later_gradients[last])
        found = []
        for x in range(2):
            size = float((self.stored if x else self.outputs)[last - 1])
            for index in range(*self.ranges[2 * last + x]):
                label = self.labels[index]
                before, behind = keep_idle_seconds(
                    self.budget, label, size, need_f, need_b, chain.rate
                )
                ahead, after = before + chain.forward[last], behind + chain.backward[last]
                left = max(label[SENT] - ahead * chain.rate, 0.0)
                left += max(label[DUE] - after * chain.rate, 0.0)
                total = float(label[TIME] + ahead + after + left / chain.rate)
                if total < self.limit:
                    found.append((total, index))
        return found

    def _walked(self, index: int) -> tuple[list[ChainOperation], list[StoredItem]]:
        """The sequence of a label of the loss, and what leaves in it."""
        from tightfit.stages.combine.chain_offload.pofo_compiled import DUE, LEAVES, PASSES, STAY

        last = self.chain.length
        position = last
        ahead: list[list[ChainOperation]] = [[ChainOperation("F_all", last)]]
        after: list[list[ChainOperation]] = [[ChainOperation("B", last)]]
        leaves: list[StoredItem] = []
        while position > 1:
            parent, did = (int(number) for number in self.trail[index])
            source, whole = self._place(parent)
            if did & LEAVES:
                leaves.append((whole and source > 1, source - 1))
            if did & PASSES:
                size = (self.stored if whole else self.outputs)[source - 1]
                label = self.labels[parent]
                room = int(self.budget - label[STAY] - size + 1e-9)
                span = self.spans.sequence(source, position - 1, room, float(label[DUE]))
                ahead.append(checkpoint_operations(source, position - 1))
                after.append([step for step in span if isinstance(step, ChainOperation)])
            else:
                ahead.append([ChainOperation("F_all", source)])
                after.append([ChainOperation("B", source)])
            position, index = source, parent
        steps = [step for part in reversed(ahead) for step in part]
        return steps + [step for part in after for step in part], leaves

    def _place(self, index: int) -> tuple[int, bool]:
        """The position of a label, and whether its input is all that was kept before."""
        for number, (first, end) in enumerate(self.ranges):
            if first <= index < end:
                return number // 2, bool(number % 2)
        raise IndexError(index)


def _early_pass_needs(forward: _ForwardProgram) -> SecondsArray:
    """What passing on from s to t needs at most where memory empties from its beginning on."""
    ways, chain = forward.ways, forward.chain
    late = np.zeros((chain.length + 2, chain.length + 1))
    for s in range(1, chain.length + 1):
        found = -np.inf
        for t in range(s, chain.length + 1):
            source = ways.at(t - 1).output if t > s else 0
            need = (ways.at(t).pass_peak + source) / chain.unit
            found = max(found, need - chain.rate * (chain.passes[t - 1] - chain.passes[s - 1]))
            late[s, t] = found
    return late
