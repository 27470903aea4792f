"""What no plan with a link goes below, and what a single operation needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.bounds.transfer_bound import CutSeconds
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain_offload.fractional_transfers import MAX_BANDWIDTH


def total_compute_seconds(ways: ChainProblem) -> float:
    """The seconds of all computations, each once."""
    return math.fsum(one.ways[0].seconds for one in ways.positions)


def offload_lower_bound(
    ways: ChainProblem, bandwidth: float, budget: int, recomputes: bool
) -> float:
    """The seconds that no sequence within the budget goes below, at least that of S Proposition 3.

    Looks at each operation when it runs for the first time. What an operation's backward or a later
    one reads, and has no room beside the operation, was sent before it began and comes back after
    it has ended. With `recomputes` as much of it as pays is computed again instead, in the order of
    what it takes a byte (a relaxation to parts). The chain's parameter gradients are there; its
    latency is not counted.
    """
    return max(
        moment.seconds(min(bandwidth, MAX_BANDWIDTH), budget, recomputes)
        for moment in _operation_cuts(ways, recomputes)
    )


@dataclass(frozen=True)
class _OperationCut:
    """An operation with the seconds `before` it, its own (`during`) and those `after` it.

    `needs` are the bytes that it takes itself, `sizes` those of what has to be there later but not
    now, and `makes` the seconds in which each of these can be made again, infinite for the input.
    """

    before: float
    during: float
    after: float
    needs: int
    sizes: list[int]
    makes: list[float]

    def seconds(self, bandwidth: float, budget: int, recomputes: bool) -> float:
        """What a sequence takes at least, by this operation; infinite where it does not fit."""
        if self.needs > budget:
            return math.inf
        over = sum(self.sizes) - (budget - self.needs)
        own = self.before + self.during, self.after + self.during
        sides = CutSeconds(self.before + self.during + self.after, *own, self.during)
        return sides.least(over, self._groups() if recomputes else [], bandwidth)

    def _groups(self) -> list[tuple[int, float]]:
        """What can be made again, the cheapest bytes first."""
        groups = [
            (size, seconds)
            for size, seconds in zip(self.sizes, self.makes, strict=True)
            if size and seconds < math.inf
        ]
        return sorted(groups, key=lambda group: group[1] / group[0])


def _operation_cuts(ways: ChainProblem, recomputes: bool) -> Iterator[_OperationCut]:
    """All first forwards, which may keep nothing with `recomputes`, and all backwards."""
    first = [one.ways[0] for one in ways.positions]
    kept = [ways.always_resident, *(way.save for way in first)]
    makes = [math.inf, *(way.forward_seconds for way in first)]
    total, done = total_compute_seconds(ways), 0.0
    for position, way in enumerate(first, start=1):
        needs = way.forward_peak
        if recomputes:
            needs = min(needs, ways.at(position).pass_peak)
        needs += ways.at(len(ways)).delta
        yield _operation_cut(
            done, way.forward_seconds, total, needs, kept[:position], makes[:position]
        )
        done += way.forward_seconds
    grown = 0
    for position in range(len(ways), 0, -1):
        way = first[position - 1]
        needs = way.backward_peak + grown
        yield _operation_cut(
            done, way.backward_seconds, total, needs, kept[:position], makes[:position]
        )
        done += way.backward_seconds
        grown += ways.at(position).gradient


def _operation_cut(
    before: float, during: float, total: float, needs: int, sizes: list[int], makes: list[float]
) -> _OperationCut:
    return _OperationCut(before, during, max(0.0, total - before - during), needs, sizes, makes)


def peak_operation(ways: ChainProblem, recomputes: bool) -> tuple[int, ChainOperation]:
    """The most bytes that one operation needs with nothing else stored but its input, in all; and
    which it is. With `recomputes`, positions may run without keeping anything, and whenever a
    gradient that is small is there."""
    found: list[tuple[int, ChainOperation]] = []
    last, grown = len(ways), 0
    end = least = ways.at(last).delta
    for position in range(last, 0, -1):
        way, one = ways.at(position).ways[0], ways.at(position)
        before = ways.at(position - 1) if position > 1 else None
        source = before.ways[0].save if before else ways.always_resident
        kept = way.forward_peak
        if recomputes:
            least = min(least, one.delta + grown)
            source = min(source, before.output) if before else source
            if position < last:
                first = min(one.pass_peak, kept)
                found.append((source + first + end, ChainOperation("F_ck", position)))
        found.append((source + kept + least, ChainOperation("F_all", position)))
        found.append((source + way.backward_peak + grown, ChainOperation("B", position)))
        grown += one.gradient
    return max(found, key=lambda item: item[0])
