"""Frees: the fastest sequence of a short chain, where anything stored may be freed at any time."""

from __future__ import annotations

from tightfit.stages.combine.chain.frontier import ChainFrontier, spread_indices
from tightfit.stages.combine.chain.options import ChainProblem, build_model_chain_problem
from tightfit.stages.combine.chain.sequence_search import EarlyFreeChainPlans, SequenceSearch
from tightfit.stages.combine.lowering.blocks import build_candidate
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES

BUDGETS = 12
MAX_STATES = 20_000
"""States that are looked at for one of them; where these do not do, the persistent plan stays."""
MAX_POSITIONS = 10
"""Positions of the longest chain that is searched."""


class EarlyFreeStrategy:
    """A search over all that can be stored, of blocks that keep everything or nothing."""

    about = STRATEGIES["early_free"]

    def supports(self, step: PlanningProblem) -> str:
        """A step that is a chain of a few blocks."""
        count = len(step.blocks.blocks)
        if count <= MAX_POSITIONS:
            return ""
        return (
            f"it has {count} blocks, and a search of all that can be stored takes {MAX_POSITIONS}"
        )

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The fastest plans at budgets spread over the peaks of the persistent ones."""
        ways = build_model_chain_problem(step.blocks, step.options, True)
        persistent = ChainFrontier(ways, step.slots).plans()
        chosen = [persistent[index] for index in spread_indices(len(persistent), BUDGETS)]
        search, candidates = SequenceSearch(ways), []
        for plan in chosen:
            sequence = search.fastest(plan.peak, MAX_STATES).sequence or plan.sequence
            candidates.append(build_candidate(step, sequence, f"search within {plan.peak} bytes"))
        return candidates

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> EarlyFreeChainPlans:
        """The plans of a chain from a file; nothing is rounded to slots."""
        return EarlyFreeChainPlans(ways)


STRATEGY = EarlyFreeStrategy()
