"""Polish: improves any sequence of executions at op level, under a budget, at true sizes.

Local search on the sequence itself (`anneal`) decides together what to keep, what to drop again
after a use, when to make it again, and in which order the ops run. The search starts from the given
sequences, from the one that keeps everything, and from what was found for neighbouring budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np

from schemas.problem import Problem
from stages.combine.polish.anneal import PATIENT, QUICK, Pace, anneal
from stages.combine.polish.arrays import Arrays, arrays, large_first
from stages.combine.polish.kernel import memory_line
from stages.combine.polish.views import Views

Report = Callable[[int, int], None]
"""Takes how much is done, of how much."""
Drafts = Callable[[int], Sequence[Sequence[int]]]
"""Takes a budget in bytes and gives further sequences to start from."""
STEP = 0.975
"""Ratio of two neighbouring budgets on the grid of a frontier."""
PLENTY = 1 << 62
"""Bytes that no step takes."""
ALONE, BESIDE, FURTHER = 120, 50, 200
"""Moves per node of a search from a start, from what another search found, and of a refinement
that goes on from the best."""
PATIENCE = 600
"""Moves per node of a patient search (`anneal.PATIENT`)."""
MISSES = 3
"""At how many budgets, one below the other, nothing is found before the grid of a frontier ends:
a search that has to go further down can find what a nearer one did not."""
ROUNDS, IDLE = 12, 2
"""How many rounds a refinement has at most, and after how many in a row without a gain it ends."""
GAIN, PART = 1e-4, 0.05
"""What a round has to gain: this part of the time, and of what the best takes beyond what no plan
goes below."""
CLOSE = 2e-3
"""What part of the time the best may be above what no plan goes below for rounds not to be
patient."""
FAR, DRAFTED, SEEDS = 2e-2, 2, 4
"""What part of the time the best may be above what no plan goes below for patient searches from
drafts not to be made, from how many of the last of these they are made, and how many from each."""
EVERY = 6
"""One budget of a grid in this many has drafts, which take longer than the search, and a patient
search where it is small: neighbouring budgets start from what that finds."""
SMALLEST = EVERY + MISSES
"""How many of the smallest budgets of a grid are searched patiently, those missed among them."""
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


class Polisher:
    """Polishes sequences of one problem; without `views` these take no time."""

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
        given = [self._plan(self.keep_all, budget, None)]
        given += [self._plan(sequence, budget, index) for index, sequence in starts.items()]
        if given[0].peak <= budget:
            return self._search(given, given[:1], budget, ALONE)
        given += (
            [self._plan(sequence, budget, None) for sequence in drafts(budget)] if drafts else []
        )
        return self._search(given, given[1:] or given, budget, ALONE)

    def refine(
        self,
        starts: Sequence[Sequence[int]],
        budget: int,
        least: float = math.inf,
        drafts: Sequence[Sequence[int]] = (),
    ) -> Polished:
        """As `polish`, from all starts and drafts, and in rounds from the best of what was found,
        as long as these gain something. They are patient where nothing fits, or where `least`,
        seconds that no sequence goes below, is given and not nearly met. Where it is far, patient
        searches from the last of the `drafts`, which may exceed the budget, come first."""
        sequences = [*starts, *drafts]
        given = [self._plan(sequence, budget, index) for index, sequence in enumerate(sequences)]
        best = self._search(given, given, budget, ALONE)
        if best.peak > budget or best.seconds > (1 + FAR) * least:
            for seed in range(len(given), len(given) + SEEDS):
                best = self._search(
                    [best], given[len(starts) :][-DRAFTED:], budget, PATIENCE, seed, PATIENT
                )
        idle = 0
        for number in range(ROUNDS):
            before = best
            best = self._search([best], [best], budget, FURTHER, len(given) + number)
            if best.peak > budget or best.seconds > (1 + CLOSE) * least:
                best = self._search([best], [best], budget, PATIENCE, number, PATIENT)
            idle = 0 if _has_gained(before, best, budget, least) else idle + 1
            if idle == IDLE:
                break
        return best

    def _plan(self, sequence: Sequence[int], budget: int, start: int | None) -> Polished:
        peak, seconds = self.measure(sequence, budget)
        return Polished(list(sequence), int(peak), float(seconds), start, budget)

    def _search(
        self,
        known: Sequence[Polished],
        starts: Iterable[Polished],
        budget: int,
        moves: int,
        first: int = 0,
        pace: Pace = QUICK,
    ) -> Polished:
        """The best for the budget of what is known and of what a search from each start finds, the
        first of them with the seed `first`."""
        best = min(known, key=partial(_rank, budget))
        count, a = self._moves(moves), self.arrays if pace == QUICK else self.patient
        if not count:
            return best
        for seed, start in enumerate(starts, first):
            if start.sequence == self.keep_all and start.peak <= budget:
                continue
            given = np.array(start.sequence, np.int32)
            found = anneal(a, given, budget, count, seed, pace)
            best = min(
                best, self._plan(found.tolist(), budget, start.start), key=partial(_rank, budget)
            )
        return best

    def _moves(self, share: int) -> int:
        """How many moves a search makes of `share` for each node."""
        if self.nodes > LARGE:
            return 0
        return min(max(share * self.nodes, LEAST_MOVES), MOST_WORK // self.nodes)

    def sweep(
        self,
        starts: Sequence[Sequence[int]],
        least: int,
        workers: int,
        report: Report | None = None,
        drafts: Drafts | None = None,
    ) -> list[Polished]:
        """Polished sequences for a grid of budgets from keep-all's peak down to where none is found
        for some in a row; `least` is a peak that no sequence goes below.

        Each budget that a start fits is polished by itself, each further one from what the one
        before it found; then each again from what its neighbours found, and it takes over what a
        smaller budget found, where that is faster. None of this depends on `workers`, the number
        of threads. `drafts` gives further starts for some of the first of these. `report` is told
        how many budgets are done, half of one for each search, of at most how many.
        """
        budgets = grid(self.measure(self.keep_all, PLENTY)[0], least)
        told = _Told(report, len(budgets))
        measured = [self.measure(sequence, -1) for sequence in starts]
        lowest = min((peak for peak, _ in measured), default=PLENTY)
        near = [budget for budget in budgets if budget >= lowest]
        drafted = budgets[EVERY - 1 :: EVERY]

        def alone(budget: int) -> Polished:
            chosen = {index: starts[index] for index in _nearest(measured, budget)}
            return told(self.polish(chosen, budget, drafts if budget in drafted else None))

        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(alone, near))
            misses = 0
            for budget in budgets[len(near) :]:
                above = found[-1].sequence if found else self.keep_all
                start = found[-1].start if found else None
                known = [self._plan(above, budget, start)]
                if drafts and budget in drafted:
                    known += [self._plan(each, budget, None) for each in drafts(budget)]
                found.append(told(self._search(known, known, budget, ALONE)))
                misses = misses + 1 if found[-1].peak > budget else 0
                if misses == MISSES:
                    break

            def beside(index: int) -> Polished:
                budget = budgets[index]
                neighbours = found[max(index - 1, 0) : index + 2]
                known = [self._plan(each.sequence, budget, each.start) for each in neighbours]
                ranked = sorted(known, key=partial(_rank, budget))
                return self._search(known, ranked[:1], budget, BESIDE)

            def below(first: int) -> list[Polished]:
                """Some budgets in a row; the first of them is searched patiently, and so are those
                within which nothing is found and the smallest."""
                better: list[Polished] = []
                for place in range(first, min(first + EVERY, len(found))):
                    budget, own = budgets[place], found[place]
                    best = own
                    if better:
                        above = self._plan(better[-1].sequence, budget, better[-1].start)
                        start = min(own, above, key=partial(_rank, budget))
                        best = self._search([start], [start], budget, BESIDE)
                    smallest = place >= len(found) - SMALLEST
                    if not better or best.peak > budget or smallest:
                        best = self._search([best], [best], budget, PATIENCE, pace=PATIENT)
                    better.append(told(best))
                return better

            small = _small(budgets[: len(found)])
            found = list(pool.map(beside, range(len(found))))
            found[: small.start] = map(told, found[: small.start])
            found[small.start :] = [each for row in pool.map(below, small) for each in row]
        return self._inherit(budgets, found)

    def _inherit(self, budgets: Sequence[int], found: Sequence[Polished]) -> list[Polished]:
        """The results from the smallest budget up, none slower than its predecessor."""
        best = [found[-1]]
        for budget, own in list(zip(budgets, found, strict=False))[-2::-1]:
            below = self._plan(best[-1].sequence, budget, best[-1].start)
            best.append(min(own, below, key=partial(_rank, budget)))
        return best


def _small(budgets: Sequence[int]) -> range:
    """The first of each so many in a row, from about the middle between the largest and the
    smallest budget on."""
    middle = (budgets[0] + budgets[-1]) // 2 if budgets else 0
    near = sum(budget > middle for budget in budgets)
    return range(near, len(budgets), EVERY)


class _Told:
    """Counts searches, two for each budget, and reports how many budgets are done."""

    def __init__(self, report: Report | None, most: int) -> None:
        self.report = report
        self.most = most
        self.done = 0
        self.lock = Lock()

    def __call__(self, polished: Polished) -> Polished:
        with self.lock:
            self.done += 1
            if self.report is not None:
                self.report(self.done // 2, self.most)
        return polished


def _has_gained(before: Polished, best: Polished, budget: int, least: float) -> bool:
    """Whether a round gained enough for another one to follow."""
    excess = before.peak - budget
    if excess > 0:
        return best.peak - budget < (1 - PART) * excess
    beyond = before.seconds - least if math.isfinite(least) else 0.0
    return before.seconds - best.seconds > max(GAIN * before.seconds, PART * beyond)


def _rank(budget: int, polished: Polished) -> tuple[int, float]:
    return max(polished.peak - budget, 0), polished.seconds


def grid(highest: int, least: int) -> list[int]:
    """The budgets of a frontier between two peaks, falling."""
    budgets: list[int] = []
    budget = highest
    while budget > least * STEP:
        budgets.append(max(budget, least))
        budget = int(budget * STEP)
    return budgets


def _nearest(measured: Sequence[tuple[int, float]], budget: int) -> list[int]:
    """The index of the start, by peak and seconds, that is the fastest to fit the budget; where
    none fits, of the one of least peak; none where there are no starts."""
    fitting = [index for index, (peak, _) in enumerate(measured) if peak <= budget]
    if fitting:
        return [min(fitting, key=lambda index: measured[index][1])]
    return [min(range(len(measured)), key=lambda index: measured[index][0])] if measured else []
