"""Frees: the fastest sequence of a short chain, where anything stored may be freed at any time."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.chain.freed import FreedChain
from tightfit.stages.combine.chain.frontier import ChainFrontier, spread
from tightfit.stages.combine.chain.search import SequenceSearch
from tightfit.stages.combine.chain.ways import Ways, ways_of_blocks
from tightfit.stages.combine.schedule.executions import candidate_of
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep

BUDGETS = 12
STATES = 20_000
"""States that are looked at for one of them; where these do not do, the persistent plan stays."""
LONGEST = 10
"""Positions of the longest chain that is searched."""


class Frees:
    """A search over all that can be stored, of blocks that keep everything or nothing."""

    about = STRATEGIES["frees"]

    def supports(self, step: TrainingStep) -> str:
        """A step that is a chain of a few blocks."""
        count = len(step.blocks.blocks)
        if count <= LONGEST:
            return ""
        return f"it has {count} blocks, and a search of all that can be stored takes {LONGEST}"

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The fastest plans at budgets spread over the peaks of the persistent ones."""
        ways = ways_of_blocks(step.blocks, step.options, True)
        persistent = ChainFrontier(ways).plans()
        chosen = [persistent[index] for index in spread(len(persistent), BUDGETS)]
        search, candidates = SequenceSearch(ways), []
        for plan in chosen:
            sequence = search.fastest(plan.peak, STATES).sequence or plan.sequence
            candidates.append(candidate_of(step, sequence, f"search within {plan.peak} bytes"))
        return candidates

    def plans_of_chain(self, ways: Ways, slots: int) -> FreedChain:
        """The plans of a chain from a file; nothing is rounded to slots."""
        return FreedChain(ways)


STRATEGY = Frees()
