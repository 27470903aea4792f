"""Revolve: only inputs of blocks are stored (Griewank and Walther 2000; S 2.5)."""

from __future__ import annotations

from tightfit.stages.combine.chain.baselines import RevolveChainPlans, RevolveFrontier
from tightfit.stages.combine.chain.options import ChainProblem, build_model_chain_problem
from tightfit.stages.combine.strategies.rotor import frontier_candidates
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES


class RevolveStrategy:
    """The dynamic program over blocks that run again right before their backward."""

    about = STRATEGIES["revolve"]

    def supports(self, step: PlanningProblem) -> str:
        """Every step: one that is no sequence is a chain of one block."""
        return ""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """Plans from storing every input down to the least memory."""
        ways = build_model_chain_problem(step.blocks, step.options, True)
        return frontier_candidates(step, RevolveFrontier(ways, step.slots))

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> RevolveChainPlans:
        """The plans of a chain from a file."""
        return RevolveChainPlans(ways, slots)


STRATEGY = RevolveStrategy()
