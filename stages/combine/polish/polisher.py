"""Polish: improves any sequence of executions at op level, under a budget, at true sizes.

Local search on the sequence itself (`anneal`) decides together what to keep, what to drop again
after a use, when to make it again, and in which order the ops run. The search starts from the given
sequences, from the one that keeps everything, and from what was found for neighbouring budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tightfit.schemas.frontier import BUDGETS
from tightfit.schemas.telling import Report, Tally
from tightfit.stages.combine.polish.refining import Refinement
from tightfit.stages.combine.polish.searcher import Drafts, Polished, Searcher
from tightfit.stages.combine.polish.sweeping import Sweep


class Polisher(Searcher):
    """Polishes sequences of one problem; without `views` these take no time."""

    def refine(
        self,
        starts: Sequence[Sequence[int]],
        budget: int,
        least: float = math.inf,
        drafts: Sequence[Sequence[int]] = (),
        told: Tally | None = None,
    ) -> Polished:
        """As `polish`, from all starts and drafts, and on from the best of what was found, as
        `Refinement` does; `least` are seconds that no sequence goes below, where these are known,
        and drafts may exceed the budget; each search is `told`."""
        return Refinement(self, budget, least, told or Tally()).best(starts, drafts)

    def sweep(
        self,
        starts: Sequence[Sequence[int]],
        least: int,
        workers: int,
        report: Report | None = None,
        drafts: Drafts | None = None,
        most: int = BUDGETS,
    ) -> list[Polished]:
        """Polished sequences for a grid of at most so many budgets, from the smallest up, as
        `Sweep` makes them: from keep-all's peak down to where none is found for some in a row;
        `least` is a peak that no sequence goes below. None of this depends on `workers`, the number
        of threads."""
        return Sweep(self, starts, least, report, drafts, most).run(workers)
