"""Parts of a chain whose backward runs while data comes back: C_Delta of POFO (S 4.2.3, eq. 4.4).

`cost(s, t, m, d)` is the least time for forward and backward of positions s..t beside their input,
within m slots of memory. Data comes back meanwhile, as late as it can, and takes d of the slots at
the end. Without such data this is Rotor's program. What is stored is rounded to whole slots so that
neighbours together are off by a slot at most. S rounds up, and loses as much as there are
positions. What does not fit at true sizes is seen when it is played. d need not be whole: between
two slots times are taken to lie on a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.chain.slots import Needs, slot_size
from tightfit.stages.combine.chain.table import Steps, pass_on, run_block
from tightfit.stages.combine.chain.ways import Ways
from tightfit.stages.combine.offload.fluid import FASTEST
from tightfit.stages.combine.vectors import Integers, Seconds

MOST_NUMBERS = 24_000_000
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
    output: Integers
    kept: Integers
    forward: Seconds
    backward: Seconds
    all_peak: Seconds
    back_peak: Seconds
    beside: Seconds
    grown: Seconds
    pass_peak: Seconds
    lag_peak: Seconds
    passes: Seconds
    once: Seconds

    @property
    def length(self) -> int:
        """The positions, the loss included."""
        return len(self.output) - 1


def span_chain(ways: Ways, limit: int, slots: int, bandwidth: float) -> SpanChain:
    """The chain for budgets up to `limit` bytes, the chain's input counted."""
    length = len(ways)
    needs, first = Needs(ways), [one.ways[0] for one in ways.positions]
    fitting = int((MOST_NUMBERS / (length * (length + 1) / 2)) ** 0.5) - 1
    unit, _ = slot_size(
        [*needs.stored(), ways.throughout],
        needs.beside_stored(),
        limit,
        max(2, min(slots, fitting)),
    )
    stored = np.array([ways.throughout, *(way.save for way in first)], dtype=np.int64)
    outputs = np.array([ways.throughout, *(one.output for one in ways.positions)], dtype=np.int64)
    forward = np.array([0.0, *(way.forward_seconds for way in first)])
    backward = np.array([0.0, *(way.backward_seconds for way in first)])
    rate = min(bandwidth, FASTEST) / unit
    pass_peak, lag_peak = _passing(ways, forward, unit, rate)
    return SpanChain(
        unit=unit,
        room=limit // unit,
        rate=rate,
        output=_rounded(outputs, unit),
        kept=_rounded(stored, unit),
        forward=forward,
        backward=backward,
        all_peak=np.array([0, *(way.forward_peak for way in first)]) / unit,
        back_peak=np.array([0, *(way.backward_peak for way in first)]) / unit,
        beside=needs.beside / unit,
        grown=needs.grown / unit,
        pass_peak=pass_peak,
        lag_peak=lag_peak,
        passes=np.cumsum(forward),
        once=np.cumsum(forward + backward),
    )


def _rounded(sizes: Integers, unit: int) -> Integers:
    """Sizes in slots, so that those of neighbours together are off by a slot at most."""
    return np.diff(np.rint(np.cumsum(sizes) / unit), prepend=0).astype(np.int64)


def _passing(ways: Ways, forward: Seconds, unit: int, rate: float) -> tuple[Seconds, Seconds]:
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
class Spans:
    """The table of a chain: `cost[cell(s, t), m, d]` in seconds, infinite where m slots, or m of
    which d are taken, do not do."""

    chain: SpanChain
    cost: Seconds

    def sequence(self, first: int, last: int, room: int, due: float) -> Steps:
        """The operations of a span within `room` slots while `due` slots come back."""
        from tightfit.stages.combine.offload.spans_compiled import choose

        operations: Steps = []
        pending: list[Operation | tuple[int, int, int, float]] = [(first, last, room, due)]
        while pending:
            item = pending.pop()
            if isinstance(item, Operation):
                operations.append(item)
                continue
            s, t, m, d = item
            split, inner_due = choose(self.cost, self.chain, s, t, m, d)
            following: list[Operation | tuple[int, int, int, float]] = []
            if split == 0:
                ran = [step for step in run_block(s, -1, 0, []) if isinstance(step, Operation)]
                rest = [(s + 1, t, m - int(self.chain.kept[s]), inner_due)] if s < t else []
                following = [ran[0], *rest, ran[1]]
            else:
                inner = (split + 1, t, m - int(self.chain.output[split]), inner_due)
                following = [*pass_on(s, split), inner, (s, split, m, d)]
            pending.extend(reversed(following))
        return operations


def build_spans(ways: Ways, limit: int, slots: int, bandwidth: float) -> Spans:
    """The table of all spans of a chain for budgets up to `limit` bytes, in about `slots` slots."""
    from tightfit.stages.combine.offload.spans_compiled import fill

    chain = span_chain(ways, limit, slots, bandwidth)
    width, rows = chain.room + 1, chain.length * (chain.length + 1) // 2
    cost = np.full((rows, width, width), np.inf)
    fill(cost, chain)
    return Spans(chain, cost)
