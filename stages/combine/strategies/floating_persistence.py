"""Floating: the fastest sequence of a short chain, whose last stored output may move on."""

from __future__ import annotations

from tightfit.stages.combine.chain.floating_persistence import (
    MAX_FLOATING_POSITIONS,
    MAX_FLOATING_TABLE_POSITIONS,
    FloatingChainPlans,
    floating_chain_plans,
    floating_frontier,
)
from tightfit.stages.combine.chain.frontier import ChainPlans, spread_indices
from tightfit.stages.combine.chain.options import ChainProblem, build_model_chain_problem
from tightfit.stages.combine.lowering.blocks import build_candidate
from tightfit.stages.combine.strategies.rotor import frontier_candidates
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES

BUDGETS = 24


class FloatingStrategy:
    """Rotor's program with floating persistence, of blocks that keep everything or nothing."""

    about = STRATEGIES["floating_persistence"]

    def supports(self, step: PlanningProblem) -> str:
        """A step that is a chain of some blocks."""
        count = len(step.blocks.blocks)
        if count < MAX_FLOATING_TABLE_POSITIONS:
            return ""
        most = MAX_FLOATING_TABLE_POSITIONS - 1
        return f"it has {count} blocks, and a chain whose outputs move takes {most}"

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The fastest plans at budgets spread over those at which the time falls."""
        ways = build_model_chain_problem(step.blocks, step.options, True)
        if len(ways) > MAX_FLOATING_POSITIONS:
            return frontier_candidates(step, floating_frontier(ways, step.slots))
        chain = FloatingChainPlans(ways)
        budgets = chain.program.whole.bytes.tolist()
        found = []
        for index in spread_indices(len(budgets), BUDGETS):
            sequence = chain.program.sequence(budgets[index])
            found.append(build_candidate(step, sequence, f"floating within {budgets[index]} bytes"))
        return found

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> ChainPlans:
        """The plans of a chain from a file; those of a short one are rounded to no slots."""
        return floating_chain_plans(ways, slots)


STRATEGY = FloatingStrategy()
