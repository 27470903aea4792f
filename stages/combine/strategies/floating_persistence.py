"""Floating: the fastest sequence of a short chain, whose last stored output may move on."""

from __future__ import annotations

from tightfit.stages.combine.chain.floating_persistence import (
    MAX_FLOATING_POSITIONS,
    FloatingChainPlans,
)
from tightfit.stages.combine.chain.frontier import spread_indices
from tightfit.stages.combine.chain.options import ChainProblem, build_model_chain_problem
from tightfit.stages.combine.lowering.blocks import build_candidate
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES

BUDGETS = 24


class FloatingStrategy:
    """Rotor's program with floating persistence, of blocks that keep everything or nothing."""

    about = STRATEGIES["floating_persistence"]

    def supports(self, step: PlanningProblem) -> str:
        """A step that is a chain of some blocks."""
        count = len(step.blocks.blocks)
        if count < MAX_FLOATING_POSITIONS:
            return ""
        most = MAX_FLOATING_POSITIONS - 1
        return f"it has {count} blocks, and a chain whose outputs move takes {most}"

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The fastest plans at budgets spread over those at which the time falls."""
        chain = FloatingChainPlans(build_model_chain_problem(step.blocks, step.options, True))
        budgets = chain.program.whole.bytes.tolist()
        found = []
        for index in spread_indices(len(budgets), BUDGETS):
            sequence = chain.program.sequence(budgets[index])
            found.append(build_candidate(step, sequence, f"floating within {budgets[index]} bytes"))
        return found

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> FloatingChainPlans:
        """The plans of a chain from a file; nothing is rounded to slots."""
        return FloatingChainPlans(ways)


STRATEGY = FloatingStrategy()
