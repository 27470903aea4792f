"""The plans of a short chain by the program with floating persistence."""

from __future__ import annotations

from functools import cached_property

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.chain.floating import Floating
from tightfit.stages.combine.chain.frontier import ChainPlan, keep_all_sequence
from tightfit.stages.combine.chain.replay import chain_replay
from tightfit.stages.combine.chain.ways import Ways

LONGEST = 24
"""Positions of the longest chain: its program grows with the fifth power of them, and with the
budgets at which times fall."""


class FloatedChain:
    """The fastest plans at any budget, to the byte, of sequences in which the last stored output
    may move on. Raises ConfigError for a chain of more than `LONGEST` positions."""

    slots = 0
    kind = "floating"
    solver = "dynamic program, no slots"

    def __init__(self, ways: Ways) -> None:
        if len(ways) > LONGEST:
            raise ConfigError(
                f"a chain of {len(ways)} positions is too long for outputs that move, which take "
                f"up to {LONGEST}; take another strategy"
            )
        self.ways = ways
        self.keep_all = self._plan(keep_all_sequence(ways))

    @cached_property
    def program(self) -> Floating:
        """The table of the chain."""
        return Floating(self.ways)

    @property
    def smallest_budget(self) -> int:
        """The least bytes in which such a sequence can run."""
        return int(self.program.whole.bytes[0])

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes; None where no sequence fits."""
        if budget >= self.keep_all.peak:
            return self.keep_all
        if budget < self.smallest_budget:
            return None
        return self._plan(self.program.sequence(budget))

    def bound(self, budget: int) -> float:
        """Seconds that no such sequence within a budget beats: those of the fastest."""
        return self.program.whole.at(budget)

    def rounded(self, budget: int) -> float:
        """The same: no size is rounded."""
        return self.bound(budget)

    def _plan(self, sequence: list[Operation]) -> ChainPlan:
        played = chain_replay(self.ways, sequence)
        return ChainPlan(played.peak, played.seconds, played.recomputed, sequence)
