"""Rockmate: each position of the chain runs with any option of its block (Z 2.5)."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.blocks import Blocks
from schemas.options import Option
from schemas.problem import Problem
from stages.combine.chain.frontier import SLOTS
from stages.combine.chain.links import links_of_blocks
from stages.combine.strategies.candidate import Candidate
from stages.combine.strategies.rotor import candidates_of

OPTIMAL_IN = f"persistent sequences of the blocks' options at {SLOTS} slots"


def candidates(
    problem: Problem, blocks: Blocks, options: Mapping[str, list[Option]]
) -> list[Candidate]:
    """Plans from keeping everything down to the least memory, with any option for each block."""
    return candidates_of(problem, blocks, options, links_of_blocks(blocks, options))
