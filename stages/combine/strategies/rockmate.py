"""Rockmate: each position of the chain runs with any option of its block (Z 2.5)."""

from __future__ import annotations

from stages.combine.chain.frontier import SLOTS
from stages.combine.chain.links import links_of_blocks
from stages.combine.strategies.rotor import candidates_of
from stages.combine.strategies.strategy import About, Candidate, TrainingStep


class Rockmate:
    """The dynamic program over all options of the blocks."""

    about = About(
        "rockmate",
        "each block runs by one of many options (what to keep, what to compute again), found by "
        "integer programming; a dynamic program chooses among them over the sequence of blocks",
        solved=True,
        chains=True,
        optimal_in=f"persistent sequences of the blocks' options at {SLOTS} slots",
    )

    def supports(self, step: TrainingStep) -> str:
        """Every step: one that is no sequence is a chain of one block."""
        return ""

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """Plans from keeping everything down to the least memory, with any option for each
        block."""
        return candidates_of(step, links_of_blocks(step.blocks, step.options))
