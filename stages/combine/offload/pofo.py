"""POFO: what to keep, what to run again and what leaves, together (S ch. 4).

The forward phase is a program over labels, as in S 4.2.1, at true sizes: a position with what stays
on the device, what is to be sent still and what has to be back there. The backward phase is the
table of `spans`. S keeps slots of memory in both phases. Here and there communications are
fractional and in step with the loss (Assumptions 4). Places of transfers are found afterwards, by
the law of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tightfit.schemas.sequence import Operation, Store
from tightfit.stages.combine.chain.table import pass_on
from tightfit.stages.combine.chain.ways import Ways
from tightfit.stages.combine.offload.spans import Spans
from tightfit.stages.combine.vectors import Seconds

LABELS = 600
"""Labels of a position that are kept."""


@dataclass(frozen=True)
class Relaxed:
    """A sequence without transfers, what leaves between the phases, and the `seconds` of both with
    fractional communications."""

    sequence: list[Operation]
    leaves: list[Store]
    seconds: float


def pofo(
    ways: Ways, spans: Spans, budget: int, limit: float, most: int = 1, labels: int = LABELS
) -> list[Relaxed]:
    """The fastest plans within `budget` bytes, which the spans were made for, that take less than
    `limit` seconds; at most `most`, fastest first, none where there is none."""
    return list(_Forward(ways, spans, budget, limit, labels).plans(most))


class _Forward:
    """The labels of all positions."""

    def __init__(self, ways: Ways, spans: Spans, budget: int, limit: float, labels: int) -> None:
        from tightfit.stages.combine.offload.pofo_compiled import (
            Bounds,
            PofoLabels,
            PofoSizes,
            spread_labels,
        )

        chain = spans.chain
        self.ways, self.spans, self.chain = ways, spans, chain
        self.budget = budget / chain.unit
        first = [one.ways[0].save for one in ways.positions]
        self.stored = np.array([ways.throughout, *first]) / chain.unit
        outputs = [ways.throughout, *(one.output for one in ways.positions)]
        self.outputs = np.array(outputs) / chain.unit
        length = chain.length
        self.labels = np.zeros((2 * (length + 2) * labels + 1, 4))
        self.trail = np.zeros((len(self.labels), 2), dtype=np.int64)
        self.ranges = np.zeros((2 * (length + 2), 2), dtype=np.int64)
        self.ranges[2] = 0, 1
        spread = PofoLabels(self.labels, self.trail, self.ranges)
        sizes = PofoSizes(_early(self), self.outputs, self.stored)
        spread_labels(spread, spans.cost, chain, sizes, Bounds(self.budget, limit, labels))
        self.limit = limit

    def plans(self, most: int) -> Iterator[Relaxed]:
        """The plans of the fastest labels of the loss."""
        totals = self._totals()
        for seconds, index in sorted(totals)[:most]:
            sequence, leaves = self._walked(index)
            yield Relaxed(sequence, leaves, seconds)

    def _totals(self) -> list[tuple[float, int]]:
        """The seconds with each label of the loss (S 4.2.2)."""
        from tightfit.stages.combine.offload.pofo_compiled import DUE, SENT, TIME, keeping

        chain, last = self.chain, self.chain.length
        need_f = float(chain.all_peak[last] + chain.beside[last])
        need_b = float(chain.back_peak[last] + chain.grown[last])
        found = []
        for x in range(2):
            size = float((self.stored if x else self.outputs)[last - 1])
            for index in range(*self.ranges[2 * last + x]):
                label = self.labels[index]
                before, behind = keeping(self.budget, label, size, need_f, need_b, chain.rate)
                ahead, after = before + chain.forward[last], behind + chain.backward[last]
                left = max(label[SENT] - ahead * chain.rate, 0.0)
                left += max(label[DUE] - after * chain.rate, 0.0)
                total = float(label[TIME] + ahead + after + left / chain.rate)
                if total < self.limit:
                    found.append((total, index))
        return found

    def _walked(self, index: int) -> tuple[list[Operation], list[Store]]:
        """The sequence of a label of the loss, and what leaves in it."""
        from tightfit.stages.combine.offload.pofo_compiled import DUE, LEAVES, PASSES, STAY

        last = self.chain.length
        position = last
        ahead: list[list[Operation]] = [[Operation("F_all", last)]]
        after: list[list[Operation]] = [[Operation("B", last)]]
        leaves: list[Store] = []
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
                ahead.append(pass_on(source, position - 1))
                after.append([step for step in span if isinstance(step, Operation)])
            else:
                ahead.append([Operation("F_all", source)])
                after.append([Operation("B", source)])
            position, index = source, parent
        steps = [step for part in reversed(ahead) for step in part]
        return steps + [step for part in after for step in part], leaves

    def _place(self, index: int) -> tuple[int, bool]:
        """The position of a label, and whether its input is all that was kept before."""
        for number, (first, end) in enumerate(self.ranges):
            if first <= index < end:
                return number // 2, bool(number % 2)
        raise IndexError(index)


def _early(forward: _Forward) -> Seconds:
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
