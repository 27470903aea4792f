"""Rockmate: each position of the chain runs with any option of its block (Z 2.5)."""

from __future__ import annotations

from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.options import ChainProblem, build_model_chain_problem
from tightfit.stages.combine.strategies.rotor import chain_candidates
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES


class RockmateStrategy:
    """The dynamic program over all options of the blocks."""

    about = STRATEGIES["rockmate"]

    def supports(self, step: PlanningProblem) -> str:
        """Every step: one that is no sequence is a chain of one block."""
        return ""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """Plans from keeping everything down to the least memory, with any option for each
        block."""
        return chain_candidates(step, build_model_chain_problem(step.blocks, step.options))

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> ChainFrontier:
        """The plans of a chain from a file."""
        return ChainFrontier(ways, slots)


STRATEGY = RockmateStrategy()
