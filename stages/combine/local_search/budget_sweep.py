"""Polished sequences for the grid of budgets of a frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

from tightfit.schemas.frontier import FRONTIER_BUDGETS
from tightfit.stages.combine.local_search.anneal import SLOW
from tightfit.stages.combine.local_search.search import (
    SLOW_MOVES,
    START_MOVES,
    AnnealedSequence,
    BudgetRefinement,
    SequenceAnnealer,
    WarmStartSource,
    budget_rank,
)
from tightfit.util.progress import ProgressCallback, ProgressCounter

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
        searcher: SequenceAnnealer,
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
            known = [searcher.polished(above, budget, start)]
            if self.drafts and budget in self.drafted:
                known += [searcher.polished(each, budget, None) for each in self.drafts(budget)]
            found.append(self.told(searcher.search(known, known, budget, START_MOVES)))
            misses = misses + 1 if found[-1].peak > budget else 0
            if misses == MAX_MISSES:
                break
        return found

    def _beside(self, found: Sequence[AnnealedSequence], index: int) -> AnnealedSequence:
        """What is found for a budget from the best of its own and of its neighbors."""
        budget = self.budgets[index]
        known = [
            self.searcher.polished(each.sequence, budget, each.start)
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
                above = searcher.polished(better[-1].sequence, budget, better[-1].start)
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
            below = self.searcher.polished(best[-1].sequence, budget, best[-1].start)
            best.append(min(own, below, key=partial(budget_rank, budget)))
        return best


class _SweepProgress:
    """Counts searches, two for each budget, and reports how many budgets are done."""

    def __init__(self, report: ProgressCallback | None, most: int) -> None:
        self.report = report
        self.most = most
        self.done = 0
        self.lock = Lock()

    def __call__(self, polished: AnnealedSequence) -> AnnealedSequence:
        with self.lock:
            self.done += 1
            if self.report is not None:
                self.report(self.done // 2, self.most, "")
        return polished


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


class LocalSearch(SequenceAnnealer):
    """Polishes sequences of one problem; without `views` these take no time."""

    def refine(
        self,
        starts: Sequence[Sequence[int]],
        budget: int,
        least: float = math.inf,
        drafts: Sequence[Sequence[int]] = (),
        told: ProgressCounter | None = None,
    ) -> AnnealedSequence:
        """As `polish`, from all starts and drafts, and on from the best of what was found, as
        `Refinement` does; `least` are seconds that no sequence goes below, where these are known,
        and drafts may exceed the budget; each search is `told`."""
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
        """Polished sequences for a grid of at most so many budgets, from the smallest up, as
        `Sweep` makes them: from keep-all's peak down to where none is found for some in a row;
        `least` is a peak that no sequence goes below. None of this depends on `workers`, the number
        of threads."""
        return BudgetSweep(self, starts, least, report, drafts, most).run(workers)
