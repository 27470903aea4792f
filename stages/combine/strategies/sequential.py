"""Sequential: segments of equal length, each computed again (Chen et al. 2016)."""

from __future__ import annotations

from tightfit.stages.combine.chain.baselines import (
    SegmentedChainPlans,
    most_segments,
    segmented_sequence,
)
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.lowering.blocks import build_candidate
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES


class SequentialStrategy:
    """Cuts the sequence of blocks into segments, of which the last keeps everything."""

    about = STRATEGIES["sequential"]

    def supports(self, step: PlanningProblem) -> str:
        """Every step: one that is no sequence is a chain of one block."""
        return ""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """A plan for each number of segments."""
        length = len(step.blocks.blocks)
        return [
            build_candidate(step, segmented_sequence(length, segments), f"{segments} segments")
            for segments in range(1, most_segments(length) + 1)
        ]

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> SegmentedChainPlans:
        """The plans of a chain from a file; nothing is rounded to slots."""
        return SegmentedChainPlans(ways)


STRATEGY = SequentialStrategy()
