"""Polish: improves any sequence of executions at op level, under a budget, at true sizes.

What to keep, what to drop again after a use, when to recompute it and in which order the ops run
are decided together by local search on the sequence itself (`search`), starting from the given
sequence and from the one that keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from schemas.problem import Problem
from stages.combine.arrays import Arrays, Positions, arrays
from stages.combine.kernel import memory_line
from stages.combine.search import exchange, relax, repair

ROUNDS = 2000
"""Steps of repair before a start is given up: more than any real model has needed."""
EXCHANGE_ROUNDS = 12
STEP = 0.975
"""Ratio of two neighbouring budgets on the grid of a frontier."""
ROOM = 6
"""A sequence may hold this many times the nodes of the problem."""


@dataclass(frozen=True)
class Polished:
    """A sequence of node positions with its peak in bytes and its seconds, ops overwriting inputs
    where they can. `start` is the index of the given sequence it came from, -1 for keep-all."""

    sequence: list[int]
    peak: int
    seconds: float
    start: int


class Polisher:
    """Polishes sequences of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.arrays: Arrays = arrays(problem, in_place=True)
        self.nodes = len(problem.nodes)
        self.keep_all = list(range(self.nodes))

    def measure(self, sequence: Sequence[int]) -> tuple[int, float]:
        """Peak in bytes and seconds of a sequence of node positions."""
        line = np.empty(len(sequence), np.int64)
        return memory_line(self.arrays, np.array(sequence, np.int32), len(sequence), line)

    def polish(self, starts: Sequence[Sequence[int]], budget: int) -> Polished:
        """The fastest sequence within the budget that the search finds from the starts and from
        keep-all; where it finds none, the one with the least peak."""
        best: Polished | None = None
        for start, sequence in enumerate([*starts, self.keep_all]):
            index = -1 if start == len(starts) else start
            found = self._from(sequence, budget, index)
            if best is None or _rank(found, budget) < _rank(best, budget):
                best = found
        assert best is not None
        return best

    def _from(self, sequence: Sequence[int], budget: int, start: int) -> Polished:
        room = np.zeros(max(self.nodes, len(sequence)) * ROOM, np.int32)
        room[: len(sequence)] = sequence
        found, length, peak, seconds, _ = repair(
            self.arrays, room, len(sequence), budget, ROUNDS, np.inf
        )
        if peak <= budget:
            found, length, peak, seconds = relax(self.arrays, found, length, budget)
            found, length, peak, seconds = exchange(
                self.arrays, found, length, budget, EXCHANGE_ROUNDS
            )
        return Polished(_list(found, length), int(peak), float(seconds), start)

    def sweep(self, starts: Sequence[Sequence[int]], least: int, workers: int) -> list[Polished]:
        """Polished sequences for a grid of budgets from keep-all's peak down to where no start
        can be repaired any more; `least` is a peak that no sequence goes below.

        Each budget is polished by itself, so that the result does not depend on `workers`; then
        each takes over what a smaller budget found, where relaxing that is faster.
        """
        ranked = [(*self.measure(sequence), list(sequence)) for sequence in starts]
        found: list[tuple[int, Polished]] = []
        with ThreadPoolExecutor(workers) as pool:
            for group in _groups(self.measure(self.keep_all)[0], least, workers):
                results = list(
                    pool.map(lambda budget: self.polish(_nearest(ranked, budget), budget), group)
                )
                found += zip(group, results, strict=True)
                if any(result.peak > budget for budget, result in found[-workers:]):
                    break
        return self._inherit(found)

    def _inherit(self, found: Sequence[tuple[int, Polished]]) -> list[Polished]:
        """The results from the smallest budget up, each relaxed from its predecessor if better."""
        best = [found[-1][1]]
        for budget, own in reversed(found[:-1]):
            inherited = self._from(best[-1].sequence, budget, best[-1].start)
            best.append(min(own, inherited, key=lambda result: _rank(result, budget)))
        return best


def _rank(polished: Polished, budget: int) -> tuple[int, float]:
    return max(polished.peak - budget, 0), polished.seconds


def _list(sequence: Positions, length: int) -> list[int]:
    return [int(node) for node in sequence[:length]]


def _groups(highest: int, least: int, size: int) -> Iterator[list[int]]:
    budgets: list[int] = []
    budget = highest
    while budget > least * STEP:
        budgets.append(max(budget, least))
        budget = int(budget * STEP)
    for index in range(0, len(budgets), size):
        yield budgets[index : index + size]


def _nearest(ranked: Sequence[tuple[int, float, list[int]]], budget: int) -> list[list[int]]:
    """Of the starts, the fastest that fits the budget; where none fits, the one of least peak."""
    fitting = [item for item in ranked if item[0] <= budget]
    if fitting:
        return [min(fitting, key=lambda item: item[1])[2]]
    return [ranked[0][2]] if ranked else []
