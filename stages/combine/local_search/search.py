"""The local search of one problem: from given sequences, for one budget in rounds, and for the grid
of budgets of a frontier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

import numpy as np

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.local_search.anneal import FAST, SLOW, AnnealingSchedule, anneal
from tightfit.stages.combine.local_search.arrays import ProblemArrays, build_arrays, weight_by_size
from tightfit.stages.combine.local_search.liveness import memory_timeline
from tightfit.stages.combine.local_search.views import ViewTimes
from tightfit.util.budget import FRONTIER_BUDGETS
from tightfit.util.progress import ProgressCallback, ProgressCounter

WarmStartSource = Callable[[int], Sequence[Sequence[int]]]
"""Takes a budget in bytes and gives further sequences to start from."""
START_MOVES, NEIGHBOR_MOVES = 120, 50
"""Moves per node of a search from a start, and from what another search found."""
SLOW_MOVES = 600
"""Moves per node of a patient search (`anneal.PATIENT`)."""
MIN_MOVES, MAX_WORK = 4000, 3_000_000_000
"""Moves of a search at least, and moves times nodes at most: a move takes the longer the more
nodes there are."""
MAX_NODES = 20_000
"""Nodes above which no moves are made."""


@dataclass(frozen=True)
class AnnealedSequence:
    """A sequence of node positions with its peak in bytes and its seconds, where ops run in place
    as `ceiling` bytes ask for. `start` is the index of the given sequence it came from, None for
    the captured order."""

    sequence: list[int]
    peak: int
    seconds: float
    start: int | None
    ceiling: int


class LocalSearch:
    """Searches for sequences of one problem; without `views` these take no time."""

    def __init__(self, problem: PlanningGraph, views: ViewTimes | None = None) -> None:
        self.arrays: ProblemArrays = build_arrays(problem, in_place=True, views=views)
        self.size_weighted_arrays: ProblemArrays = weight_by_size(self.arrays)
        self.nodes = len(problem.nodes)
        self.keep_all = list(range(self.nodes))

    def measure(self, sequence: Sequence[int], ceiling: int = 0) -> tuple[int, float]:
        """Peak in bytes and seconds of a sequence of node positions, ops in place where they take
        no longer, or more than `ceiling` bytes otherwise."""
        line = np.empty(len(sequence), np.int64)
        return memory_timeline(
            self.arrays, np.array(sequence, np.int64), len(sequence), ceiling, line
        )

    def improve(
        self,
        starts: Mapping[int, Sequence[int]],
        budget: int,
        drafts: WarmStartSource | None = None,
    ) -> AnnealedSequence:
        """The fastest sequence within the budget that the search finds from the starts, by index,
        and from drafts; where it finds none, the one that is least above it. Keep-all is taken
        where it fits, and is the start where there is no other. Nothing given is better."""
        given = [self.evaluate(self.keep_all, budget, None)]
        given += [self.evaluate(sequence, budget, index) for index, sequence in starts.items()]
        if given[0].peak <= budget:
            return self.search(given, given[:1], budget, START_MOVES)
        given += (
            [self.evaluate(sequence, budget, None) for sequence in drafts(budget)] if drafts else []
        )
        return self.search(given, given[1:] or given, budget, START_MOVES)

    def beside(self, known: Sequence[AnnealedSequence], budget: int) -> AnnealedSequence:
        """The best for the budget of what is known and of a short search from the best of it."""
        best = min(known, key=partial(budget_rank, budget))
        return self.search(known, [best], budget, NEIGHBOR_MOVES)

    def evaluate(self, sequence: Sequence[int], budget: int, start: int | None) -> AnnealedSequence:
        """A sequence as it is, its ops in place as the budget asks for."""
        peak, seconds = self.measure(sequence, budget)
        return AnnealedSequence(list(sequence), int(peak), float(seconds), start, budget)

    def search(
        self,
        known: Sequence[AnnealedSequence],
        starts: Iterable[AnnealedSequence],
        budget: int,
        moves: int,
        first: int = 0,
        pace: AnnealingSchedule = FAST,
    ) -> AnnealedSequence:
        """The best for the budget of what is known and of what a search from each start finds, of
        so many moves a node, the first of them with the seed `first`."""
        best = min(known, key=partial(budget_rank, budget))
        count = self._moves(moves)
        if not count:
            return best
        a = self.arrays if pace == FAST else self.size_weighted_arrays
        for seed, start in enumerate(starts, first):
            if start.sequence == self.keep_all and start.peak <= budget:
                continue
            sequence = np.array(start.sequence, np.int64)
            found = anneal(a, sequence, budget, count, seed, pace)
            best = min(
                best,
                self.evaluate(found.tolist(), budget, start.start),
                key=partial(budget_rank, budget),
            )
        return best

    def _moves(self, share: int) -> int:
        """How many moves a search makes of `share` for each node."""
        if self.nodes > MAX_NODES:
            return 0
        return min(max(share * self.nodes, MIN_MOVES), MAX_WORK // self.nodes)

    def refine(
        self,
        starts: Sequence[Sequence[int]],
        budget: int,
        least: float = math.inf,
        drafts: Sequence[Sequence[int]] = (),
        told: ProgressCounter | None = None,
    ) -> AnnealedSequence:
        """As `improve`, from all starts and drafts, and on from the best of what was found, as
        `BudgetRefinement` does; `least` are seconds that no sequence goes below, where these are
        known, and drafts may exceed the budget; each search is `told`."""
        return BudgetRefinement(self, budget, least, told or ProgressCounter()).best(starts, drafts)

    def sweep(
        self,
        starts: Sequence[Sequence[int]],
        least: int,
        workers: int,
        report: ProgressCallback | None = None,
        drafts: WarmStartSource | None = None,
        most: int = FRONTIER_BUDGETS,
    ) -> list[AnnealedSequence]:
        """Annealed sequences for a grid of at most so many budgets, from the smallest up, as
        `BudgetSweep` makes them: from keep-all's peak down to where none is found for some in a
        row; `least` is a peak that no sequence goes below. None of this depends on `workers`, the
        number of threads."""
        return BudgetSweep(self, starts, least, report, drafts, most).run(workers)


def budget_rank(budget: int, annealed: AnnealedSequence) -> tuple[int, float]:
    """What a sequence is the better for the less it is: bytes above the budget, then seconds."""
    return max(annealed.peak - budget, 0), annealed.seconds


CONTINUATION_MOVES = 200
"""Moves per node of a search that goes on from the best."""
MAX_ROUNDS, MAX_IDLE_ROUNDS = 12, 2
"""How many rounds a refinement has at most, and after how many in a row without a gain it ends."""
MIN_ROUND_GAIN, MIN_GAP_GAIN = 1e-4, 0.05
"""What a round has to gain: this part of the time, and of what the best takes beyond what no plan
goes below."""
CLOSE_GAP = 2e-3
"""What part of the time the best may be above what no plan goes below for rounds not to be
patient."""
FAR_GAP, SLOW_WARM_STARTS, SEEDS_PER_WARM_START = 2e-2, 2, 4
"""What part of the time the best may be above what no plan goes below for patient searches from
drafts not to be made, from how many of the last of these they are made, and how many from each."""
MAX_SEARCHES = 1 + SEEDS_PER_WARM_START + MAX_ROUNDS
"""How many searches are told at most."""


@dataclass(frozen=True)
class BudgetRefinement:
    """The searches for one budget in bytes. No sequence takes less than `least` seconds, inf where
    that is not known. Each search is `told`, a round as one."""

    searcher: LocalSearch
    budget: int
    least: float = math.inf
    told: ProgressCounter = field(default_factory=ProgressCounter)

    def best(
        self, starts: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]] = ()
    ) -> AnnealedSequence:
        """The best of what is found from the starts and from `drafts`, which may exceed the
        budget: of one search each, of patient ones from the last drafts where that is far from
        what no sequence goes below, and of rounds from the best."""
        sequences = [*starts, *drafts]
        given = [
            self.searcher.evaluate(sequence, self.budget, index)
            for index, sequence in enumerate(sequences)
        ]
        best = self.searcher.search(given, given, self.budget, START_MOVES)
        self.told()
        if self._is_beyond(FAR_GAP, best):
            best = self._from_drafts(best, given[len(starts) :][-SLOW_WARM_STARTS:], len(given))
        return self._in_rounds(best, len(given))

    def _from_drafts(
        self, best: AnnealedSequence, drafts: Sequence[AnnealedSequence], first: int
    ) -> AnnealedSequence:
        """The best, and of patient searches from drafts, with seeds from the `first` on."""
        for seed in range(first, first + SEEDS_PER_WARM_START):
            best = self.searcher.search([best], drafts, self.budget, SLOW_MOVES, seed, SLOW)
            self.told()
        return best

    def _in_rounds(self, best: AnnealedSequence, first: int) -> AnnealedSequence:
        """The best of rounds of searches from it, as long as these gain something; they are patient
        where nothing fits, or where what no sequence goes below is not nearly met."""
        idle = 0
        for number in range(MAX_ROUNDS):
            before = best
            best = self._from(best, CONTINUATION_MOVES, first + number)
            if self._is_beyond(CLOSE_GAP, best):
                best = self.searcher.search([best], [best], self.budget, SLOW_MOVES, number, SLOW)
            self.told()
            idle = 0 if self._has_gained(before, best) else idle + 1
            if idle == MAX_IDLE_ROUNDS:
                break
        return best

    def _from(self, best: AnnealedSequence, moves: int, seed: int) -> AnnealedSequence:
        return self.searcher.search([best], [best], self.budget, moves, seed)

    def _is_beyond(self, part: float, best: AnnealedSequence) -> bool:
        """Whether the best does not fit, or takes more than what no sequence goes below by a part
        of that."""
        return best.peak > self.budget or best.seconds > (1 + part) * self.least

    def _has_gained(self, before: AnnealedSequence, best: AnnealedSequence) -> bool:
        """Whether a round gained enough for another one to follow."""
        excess = before.peak - self.budget
        if excess > 0:
            return best.peak - self.budget < (1 - MIN_GAP_GAIN) * excess
        beyond = before.seconds - self.least if math.isfinite(self.least) else 0.0
        return before.seconds - best.seconds > max(
            MIN_ROUND_GAIN * before.seconds, MIN_GAP_GAIN * beyond
        )


BUDGET_RATIO = 0.975
"""Ratio of two neighboring budgets on the grid of a frontier."""
UNLIMITED_BYTES = 1 << 62
"""Bytes that no step takes."""
MAX_MISSES = 3
"""At how many budgets, one below the other, nothing is found before the grid of a frontier ends:
a search that has to go further down can find what a nearer one did not."""
WARM_START_INTERVAL = 6
"""One budget of a grid in this many has drafts, which take longer than the search, and a patient
search where it is small: neighboring budgets start from what that finds."""
SMALLEST_BUDGETS = WARM_START_INTERVAL + MAX_MISSES
"""How many of the smallest budgets of a grid are searched patiently, those missed among them."""


class BudgetSweep:
    """The searches of a grid from keep-all's peak down to where nothing is found for some budgets
    in a row, at most so many; `least` is a peak that no sequence goes below. `drafts` gives further
    starts for some budgets; `report` is told how many are done, half of one for each search, of at
    most how many.
    """

    def __init__(
        self,
        searcher: LocalSearch,
        starts: Sequence[Sequence[int]],
        least: int,
        report: ProgressCallback | None = None,
        drafts: WarmStartSource | None = None,
        most: int = FRONTIER_BUDGETS,
    ) -> None:
        self.searcher = searcher
        self.starts = starts
        self.budgets = budget_grid(
            searcher.measure(searcher.keep_all, UNLIMITED_BYTES)[0], least, most
        )
        self.told = _SweepProgress(report, len(self.budgets))
        self.measured = [searcher.measure(sequence, -1) for sequence in starts]
        self.drafts = drafts
        self.drafted = frozenset(self.budgets[WARM_START_INTERVAL - 1 :: WARM_START_INTERVAL])

    def run(self, workers: int) -> list[AnnealedSequence]:
        """Each budget that a start fits by itself, each further one from what the one before it
        found; then each again from what its neighbors found, and it takes over what a smaller
        budget found, where that is faster. None of this depends on `workers`, the number of
        threads."""
        lowest = min((peak for peak, _ in self.measured), default=UNLIMITED_BYTES)
        near = [budget for budget in self.budgets if budget >= lowest]
        with ThreadPoolExecutor(workers) as pool:
            found = self._downwards(list(pool.map(self._alone, near)))
            small = _small_budgets(self.budgets[: len(found)])
            found = list(pool.map(partial(self._beside, found), range(len(found))))
            found[: small.start] = map(self.told, found[: small.start])
            rows = pool.map(partial(self._below, found), small)
            found[small.start :] = [each for row in rows for each in row]
        return self._inherited(found)

    def _alone(self, budget: int) -> AnnealedSequence:
        """What is found for a budget from the nearest start."""
        chosen = {index: self.starts[index] for index in _nearest_start(self.measured, budget)}
        drafts = self.drafts if budget in self.drafted else None
        return self.told(self.searcher.improve(chosen, budget, drafts))

    def _downwards(self, found: list[AnnealedSequence]) -> list[AnnealedSequence]:
        """What was found, and what is for the budgets below, each from the one before it, until
        there was nothing for some in a row."""
        searcher, misses = self.searcher, 0
        for budget in self.budgets[len(found) :]:
            above = found[-1].sequence if found else searcher.keep_all
            start = found[-1].start if found else None
            known = [searcher.evaluate(above, budget, start)]
            if self.drafts and budget in self.drafted:
                known += [searcher.evaluate(each, budget, None) for each in self.drafts(budget)]
            found.append(self.told(searcher.search(known, known, budget, START_MOVES)))
            misses = misses + 1 if found[-1].peak > budget else 0
            if misses == MAX_MISSES:
                break
        return found

    def _beside(self, found: Sequence[AnnealedSequence], index: int) -> AnnealedSequence:
        """What is found for a budget from the best of its own and of its neighbors."""
        budget = self.budgets[index]
        known = [
            self.searcher.evaluate(each.sequence, budget, each.start)
            for each in found[max(index - 1, 0) : index + 2]
        ]
        return self.searcher.beside(known, budget)

    def _below(self, found: Sequence[AnnealedSequence], first: int) -> list[AnnealedSequence]:
        """Some budgets in a row; the first of them is searched patiently, and so are those within
        which nothing is found and the smallest."""
        searcher = self.searcher
        better: list[AnnealedSequence] = []
        for place in range(first, min(first + WARM_START_INTERVAL, len(found))):
            budget, own = self.budgets[place], found[place]
            best = own
            if better:
                above = searcher.evaluate(better[-1].sequence, budget, better[-1].start)
                best = searcher.beside([own, above], budget)
            smallest = place >= len(found) - SMALLEST_BUDGETS
            if not better or best.peak > budget or smallest:
                best = searcher.search([best], [best], budget, SLOW_MOVES, pace=SLOW)
            better.append(self.told(best))
        return better

    def _inherited(self, found: Sequence[AnnealedSequence]) -> list[AnnealedSequence]:
        """The results from the smallest budget up, none slower than its predecessor."""
        best = [found[-1]]
        for budget, own in list(zip(self.budgets, found, strict=False))[-2::-1]:
            below = self.searcher.evaluate(best[-1].sequence, budget, best[-1].start)
            best.append(min(own, below, key=partial(budget_rank, budget)))
        return best


class _SweepProgress:
    """Counts searches, two for each budget, and reports how many budgets are done."""

    def __init__(self, report: ProgressCallback | None, most: int) -> None:
        self.report = report
        self.most = most
        self.done = 0
        self.lock = Lock()

    def __call__(self, annealed: AnnealedSequence) -> AnnealedSequence:
        with self.lock:
            self.done += 1
            if self.report is not None:
                self.report(self.done // 2, self.most, "")
        return annealed


def budget_grid(highest: int, least: int, most: int = FRONTIER_BUDGETS) -> list[int]:
    """The budgets of a frontier between two peaks, falling, at most so many."""
    step = min(BUDGET_RATIO, (max(least, 1) / max(highest, 1)) ** (1 / max(most - 1, 1)))
    budgets: list[int] = []
    budget = highest
    while budget > least * step and len(budgets) < most:
        budgets.append(max(budget, least))
        budget = int(budget * step)
    return budgets


def _small_budgets(budgets: Sequence[int]) -> range:
    """The first of each so many in a row, from about the middle between the largest and the
    smallest budget on."""
    middle = (budgets[0] + budgets[-1]) // 2 if budgets else 0
    near = sum(budget > middle for budget in budgets)
    return range(near, len(budgets), WARM_START_INTERVAL)


def _nearest_start(measured: Sequence[tuple[int, float]], budget: int) -> list[int]:
    """The index of the start, by peak and seconds, that is the fastest to fit the budget; where
    none fits, of the one of least peak; none where there are no starts."""
    fitting = [index for index, (peak, _) in enumerate(measured) if peak <= budget]
    if fitting:
        return [min(fitting, key=lambda index: measured[index][1])]
    return [min(range(len(measured)), key=lambda index: measured[index][0])] if measured else []
