"""The plans of a short chain by a search over all that can be stored: one search a budget."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.chain.frontier import ChainFrontier, ChainPlan, keep_all_sequence
from tightfit.stages.combine.chain.least import Least
from tightfit.stages.combine.chain.replay import chain_replay
from tightfit.stages.combine.chain.search import MOST_STATES, SequenceSearch
from tightfit.stages.combine.chain.ways import Ways


class FreedChain:
    """The fastest plans of a chain at any budget, to the byte. Raises ConfigError where a search
    ends before it is through."""

    slots = 0
    kind = "possible"
    solver = "search of all states"

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self.search = SequenceSearch(ways)
        self.keep_all = self._plan(keep_all_sequence(ways))
        self._known: dict[int, ChainPlan | None] = {}

    @cached_property
    def persistent(self) -> ChainFrontier:
        """The plans whose outputs stay where they are, to say how long a search takes."""
        return ChainFrontier(self.ways)

    @cached_property
    def smallest_budget(self) -> int:
        """The least bytes in which any sequence can run, by bisection."""
        budgets = range(Least(self.ways).budget)
        return bisect_left(budgets, True, key=lambda budget: self.within(budget) is not None)

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes; None where no sequence fits."""
        if budget >= self.keep_all.peak:
            return self.keep_all
        if budget not in self._known:
            found = self.search.fastest(budget, persistent=self._persistent_seconds(budget))
            if found.gave_up:
                raise ConfigError(
                    f"a chain of {len(self.ways)} positions is too long to search all that can be "
                    f"stored, of which up to {MOST_STATES:,} states are looked at: "
                    f"{found.states:,} were, and it is far from its end; take another strategy"
                )
            sequence = found.sequence
            self._known[budget] = None if sequence is None else self._plan(sequence)
        return self._known[budget]

    def bound(self, budget: int) -> float:
        """Seconds that no sequence within a budget beats: those of the fastest."""
        plan = self.within(budget)
        return float("inf") if plan is None else plan.seconds

    def rounded(self, budget: int) -> float:
        """The same: no size is rounded."""
        return self.bound(budget)

    def _persistent_seconds(self, budget: int) -> float:
        """The seconds of the fastest persistent sequence within a budget; of those of the smallest
        budget where none fits, which others take at least about as long as."""
        least = max(budget, self.persistent.smallest_budget)
        plan = self.persistent.within(least)
        return self.keep_all.seconds if plan is None else plan.seconds

    def _plan(self, sequence: list[Operation]) -> ChainPlan:
        played = chain_replay(self.ways, sequence)
        return ChainPlan(played.peak, played.seconds, played.recomputed, sequence)
