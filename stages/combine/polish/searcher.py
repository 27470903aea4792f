"""Searches from given sequences of one problem, as `anneal` does, and what these find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tightfit.schemas.problem import Problem
from tightfit.stages.combine.polish.anneal import QUICK, Pace, anneal
from tightfit.stages.combine.polish.arrays import Arrays, arrays, large_first
from tightfit.stages.combine.polish.kernel import memory_line
from tightfit.stages.combine.polish.views import Views

Drafts = Callable[[int], Sequence[Sequence[int]]]
"""Takes a budget in bytes and gives further sequences to start from."""
ALONE, BESIDE = 120, 50
"""Moves per node of a search from a start, and from what another search found."""
PATIENCE = 600
"""Moves per node of a patient search (`anneal.PATIENT`)."""
LEAST_MOVES, MOST_WORK = 4000, 3_000_000_000
"""Moves of a search at least, and moves times nodes at most: a move takes the longer the more
nodes there are."""
LARGE = 20_000
"""Nodes above which no moves are made."""


@dataclass(frozen=True)
class Polished:
    """A sequence of node positions with its peak in bytes and its seconds, where ops run in place
    as `ceiling` bytes ask for. `start` is the index of the given sequence it came from, None for
    the captured order."""

    sequence: list[int]
    peak: int
    seconds: float
    start: int | None
    ceiling: int


class Searcher:
    """Searches from sequences of one problem; without `views` these take no time."""

    def __init__(self, problem: Problem, views: Views | None = None) -> None:
        self.arrays: Arrays = arrays(problem, in_place=True, views=views)
        self.patient: Arrays = large_first(self.arrays)
        self.nodes = len(problem.nodes)
        self.keep_all = list(range(self.nodes))

    def measure(self, sequence: Sequence[int], ceiling: int = 0) -> tuple[int, float]:
        """Peak in bytes and seconds of a sequence of node positions, ops in place where they take
        no longer, or more than `ceiling` bytes otherwise."""
        line = np.empty(len(sequence), np.int64)
        return memory_line(self.arrays, np.array(sequence, np.int32), len(sequence), ceiling, line)

    def polish(
        self,
        starts: Mapping[int, Sequence[int]],
        budget: int,
        drafts: Drafts | None = None,
    ) -> Polished:
        """The fastest sequence within the budget that the search finds from the starts, by index,
        and from drafts; where it finds none, the one that is least above it. Keep-all is taken
        where it fits, and is the start where there is no other. Nothing given is better."""
        given = [self.polished(self.keep_all, budget, None)]
        given += [self.polished(sequence, budget, index) for index, sequence in starts.items()]
        if given[0].peak <= budget:
            return self.search(given, given[:1], budget, ALONE)
        given += (
            [self.polished(sequence, budget, None) for sequence in drafts(budget)] if drafts else []
        )
        return self.search(given, given[1:] or given, budget, ALONE)

    def beside(self, known: Sequence[Polished], budget: int) -> Polished:
        """The best for the budget of what is known and of a short search from the best of it."""
        best = min(known, key=partial(rank, budget))
        return self.search(known, [best], budget, BESIDE)

    def polished(self, sequence: Sequence[int], budget: int, start: int | None) -> Polished:
        """A sequence as it is, its ops in place as the budget asks for."""
        peak, seconds = self.measure(sequence, budget)
        return Polished(list(sequence), int(peak), float(seconds), start, budget)

    def search(
        self,
        known: Sequence[Polished],
        starts: Iterable[Polished],
        budget: int,
        moves: int,
        first: int = 0,
        pace: Pace = QUICK,
    ) -> Polished:
        """The best for the budget of what is known and of what a search from each start finds, of
        so many moves a node, the first of them with the seed `first`."""
        best = min(known, key=partial(rank, budget))
        count = self._moves(moves)
        if not count:
            return best
        a = self.arrays if pace == QUICK else self.patient
        for seed, start in enumerate(starts, first):
            if start.sequence == self.keep_all and start.peak <= budget:
                continue
            sequence = np.array(start.sequence, np.int32)
            found = anneal(a, sequence, budget, count, seed, pace)
            best = min(
                best, self.polished(found.tolist(), budget, start.start), key=partial(rank, budget)
            )
        return best

    def _moves(self, share: int) -> int:
        """How many moves a search makes of `share` for each node."""
        if self.nodes > LARGE:
            return 0
        return min(max(share * self.nodes, LEAST_MOVES), MOST_WORK // self.nodes)


def rank(budget: int, polished: Polished) -> tuple[int, float]:
    """What a sequence is the better for the less it is: bytes above the budget, then seconds."""
    return max(polished.peak - budget, 0), polished.seconds
