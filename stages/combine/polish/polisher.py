"""Polish: improves any sequence of executions at op level, under a budget, at true sizes.

What to keep, what to drop again after a use, when to recompute it and in which order the ops run
are decided together by local search on the sequence itself (`search`), starting from the given
sequence and from the one that keeps everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from schemas.problem import Problem
from stages.combine.polish.arrays import Arrays, Positions, arrays
from stages.combine.polish.kernel import memory_line
from stages.combine.polish.search import exchange, relax, repair

Report = Callable[[int, int], None]
"""Takes how much is done, of how much."""
Seeds = Callable[[int], Sequence[Sequence[int]]]
"""Gives further sequences to start from, for a budget in bytes."""
ROUNDS = 2000
"""Steps of repair before a start is given up: more than any real model has needed."""
EXCHANGE_ROUNDS = 12
HOPELESS = 1.1
"""A start whose repair takes this many times what another start took is given up."""
STEP = 0.975
"""Ratio of two neighbouring budgets on the grid of a frontier."""
PLENTY = 1 << 62
"""Bytes that no step takes."""
ROOM = 6
"""A sequence may hold this many times the nodes of the problem."""


@dataclass(frozen=True)
class Polished:
    """A sequence of node positions with its peak in bytes and its seconds, where ops run in place
    as `room` bytes ask for. `start` is the index of the given sequence it came from, None for
    the captured order and for a seed."""

    sequence: list[int]
    peak: int
    seconds: float
    start: int | None
    room: int


class Polisher:
    """Polishes sequences of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.arrays: Arrays = arrays(problem, in_place=True)
        self.nodes = len(problem.nodes)
        self.keep_all = list(range(self.nodes))

    def measure(self, sequence: Sequence[int], room: int = 0) -> tuple[int, float]:
        """Peak in bytes and seconds of a sequence of node positions, ops in place where they take
        no longer, or more than `room` bytes otherwise."""
        line = np.empty(len(sequence), np.int64)
        return memory_line(self.arrays, np.array(sequence, np.int32), len(sequence), room, line)

    def polish(
        self, starts: Mapping[int, Sequence[int]], budget: int, seeds: Seeds | None = None
    ) -> Polished:
        """The fastest sequence within the budget that the search finds from the starts, by index,
        from keep-all and, where that does not fit as it is, from seeds; where it finds none, the
        one with the least peak."""
        best = self._descend(self.keep_all, budget, None, np.inf)
        fits = self.measure(self.keep_all, budget)[0] <= budget
        more = [] if seeds is None or fits else [(None, sequence) for sequence in seeds(budget)]
        for index, sequence in [*starts.items(), *more]:
            limit = best.seconds * HOPELESS if best.peak <= budget else np.inf
            found = self._descend(sequence, budget, index, limit)
            best = min(best, found, key=lambda polished: _rank(polished, budget))
        return self._exchange(best, budget) if best.peak <= budget else best

    def _descend(
        self, sequence: Sequence[int], budget: int, start: int | None, limit: float
    ) -> Polished:
        room = self._room(sequence)
        found, length, peak, seconds, _ = repair(
            self.arrays, room, len(sequence), budget, ROUNDS, limit
        )
        if peak <= budget:
            found, length, peak, seconds = relax(self.arrays, found, length, budget)
        return Polished(_list(found, length), int(peak), float(seconds), start, budget)

    def _exchange(self, polished: Polished, budget: int) -> Polished:
        room = self._room(polished.sequence)
        found, length, peak, seconds = exchange(
            self.arrays, room, len(polished.sequence), budget, EXCHANGE_ROUNDS
        )
        return Polished(_list(found, length), int(peak), float(seconds), polished.start, budget)

    def _room(self, sequence: Sequence[int]) -> Positions:
        room = np.zeros(max(self.nodes, len(sequence)) * ROOM, np.int32)
        room[: len(sequence)] = sequence
        return room

    def sweep(
        self,
        starts: Sequence[Sequence[int]],
        least: int,
        workers: int,
        report: Report | None = None,
        seeds: Seeds | None = None,
    ) -> list[Polished]:
        """Polished sequences for a grid of budgets from keep-all's peak down to where no start
        can be repaired any more; `least` is a peak that no sequence goes below.

        Each budget is polished by itself and the grid ends at the first that is missed, so that
        the result does not depend on `workers`; then each takes over what a smaller budget found,
        where relaxing that is faster. `report` is told how many budgets are done, of at most how
        many.
        """
        budgets = _grid(self.measure(self.keep_all, PLENTY)[0], least)
        measured = [self.measure(sequence) for sequence in starts]
        found: list[tuple[int, Polished]] = []
        with ThreadPoolExecutor(workers) as pool:
            for group in _groups(budgets, workers):
                results = list(
                    pool.map(
                        lambda budget: self.polish(
                            {index: starts[index] for index in _nearest(measured, budget)},
                            budget,
                            seeds,
                        ),
                        group,
                    )
                )
                for budget, result in zip(group, results, strict=True):
                    found.append((budget, result))
                    if result.peak > budget:
                        return self._inherit(found)
                if report is not None:
                    report(len(found), len(budgets))
        return self._inherit(found)

    def _inherit(self, found: Sequence[tuple[int, Polished]]) -> list[Polished]:
        """The results from the smallest budget up, each relaxed from its predecessor if better."""
        best = [found[-1][1]]
        for budget, own in reversed(found[:-1]):
            below = best[-1]
            inherited = self._descend(below.sequence, budget, below.start, np.inf)
            best.append(min(own, inherited, key=lambda polished: _rank(polished, budget)))
        return best


def _rank(polished: Polished, budget: int) -> tuple[int, float]:
    return max(polished.peak - budget, 0), polished.seconds


def _list(sequence: Positions, length: int) -> list[int]:
    return [int(node) for node in sequence[:length]]


def _grid(highest: int, least: int) -> list[int]:
    budgets: list[int] = []
    budget = highest
    while budget > least * STEP:
        budgets.append(max(budget, least))
        budget = int(budget * STEP)
    return budgets


def _groups(budgets: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for index in range(0, len(budgets), size):
        yield budgets[index : index + size]


def _nearest(measured: Sequence[tuple[int, float]], budget: int) -> list[int]:
    """The index of the start, by peak and seconds, that is the fastest to fit the budget; where
    none fits, of the one of least peak; none where there are no starts."""
    fitting = [index for index, (peak, _) in enumerate(measured) if peak <= budget]
    if fitting:
        return [min(fitting, key=lambda index: measured[index][1])]
    return [min(range(len(measured)), key=lambda index: measured[index][0])] if measured else []
