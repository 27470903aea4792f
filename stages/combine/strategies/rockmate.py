"""Rockmate: each position of the chain runs with any option of its block (Z 2.5)."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.ways import Ways, ways_of_blocks
from tightfit.stages.combine.strategies.rotor import candidates_of
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep


class Rockmate:
    """The dynamic program over all options of the blocks."""

    about = STRATEGIES["rockmate"]

    def supports(self, step: TrainingStep) -> str:
        """Every step: one that is no sequence is a chain of one block."""
        return ""

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """Plans from keeping everything down to the least memory, with any option for each
        block."""
        return candidates_of(step, ways_of_blocks(step.blocks, step.options))

    def plans_of_chain(self, ways: Ways, slots: int) -> ChainFrontier:
        """The plans of a chain from a file."""
        return ChainFrontier(ways, slots)


STRATEGY = Rockmate()
