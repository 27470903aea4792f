"""Refines the sequence for one budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tightfit.schemas.telling import Tally
from tightfit.stages.combine.polish.anneal import PATIENT
from tightfit.stages.combine.polish.searcher import ALONE, PATIENCE, Polished, Searcher

FURTHER = 200
"""Moves per node of a search that goes on from the best."""
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
MOST = 1 + SEEDS + ROUNDS
"""How many searches are told at most."""


@dataclass(frozen=True)
class Refinement:
    """The searches for one budget in bytes. No sequence takes less than `least` seconds, inf where
    that is not known. Each search is `told`, a round as one."""

    searcher: Searcher
    budget: int
    least: float = math.inf
    told: Tally = field(default_factory=Tally)

    def best(
        self, starts: Sequence[Sequence[int]], drafts: Sequence[Sequence[int]] = ()
    ) -> Polished:
        """The best of what is found from the starts and from `drafts`, which may exceed the
        budget: of one search each, of patient ones from the last drafts where that is far from
        what no sequence goes below, and of rounds from the best."""
        sequences = [*starts, *drafts]
        given = [
            self.searcher.polished(sequence, self.budget, index)
            for index, sequence in enumerate(sequences)
        ]
        best = self.searcher.search(given, given, self.budget, ALONE)
        self.told()
        if self._is_beyond(FAR, best):
            best = self._from_drafts(best, given[len(starts) :][-DRAFTED:], len(given))
        return self._in_rounds(best, len(given))

    def _from_drafts(self, best: Polished, drafts: Sequence[Polished], first: int) -> Polished:
        """The best, and of patient searches from drafts, with seeds from the `first` on."""
        for seed in range(first, first + SEEDS):
            best = self.searcher.search([best], drafts, self.budget, PATIENCE, seed, PATIENT)
            self.told()
        return best

    def _in_rounds(self, best: Polished, first: int) -> Polished:
        """The best of rounds of searches from it, as long as these gain something; they are patient
        where nothing fits, or where what no sequence goes below is not nearly met."""
        idle = 0
        for number in range(ROUNDS):
            before = best
            best = self._from(best, FURTHER, first + number)
            if self._is_beyond(CLOSE, best):
                best = self.searcher.search([best], [best], self.budget, PATIENCE, number, PATIENT)
            self.told()
            idle = 0 if self._has_gained(before, best) else idle + 1
            if idle == IDLE:
                break
        return best

    def _from(self, best: Polished, moves: int, seed: int) -> Polished:
        return self.searcher.search([best], [best], self.budget, moves, seed)

    def _is_beyond(self, part: float, best: Polished) -> bool:
        """Whether the best does not fit, or takes more than what no sequence goes below by a part
        of that."""
        return best.peak > self.budget or best.seconds > (1 + part) * self.least

    def _has_gained(self, before: Polished, best: Polished) -> bool:
        """Whether a round gained enough for another one to follow."""
        excess = before.peak - self.budget
        if excess > 0:
            return best.peak - self.budget < (1 - PART) * excess
        beyond = before.seconds - self.least if math.isfinite(self.least) else 0.0
        return before.seconds - best.seconds > max(GAIN * before.seconds, PART * beyond)
