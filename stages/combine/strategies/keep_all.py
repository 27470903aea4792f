"""The baseline that PyTorch is by itself."""

from __future__ import annotations

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES


class KeepAllStrategy:
    """The step as it was captured: every op once."""

    about = STRATEGIES["keep_all"]

    def supports(self, step: PlanningProblem) -> str:
        """Every step."""
        return ""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The captured order."""
        last = len(step.blocks.blocks) + 1
        forward = [ChainOperation("F_all", position) for position in range(1, last)]
        backward = [ChainOperation("B", position) for position in range(last - 1, 0, -1)]
        sequence = [*forward, ChainOperation("loss", last), *backward]
        actions = run_actions(step.problem, [node.op for node in step.problem.nodes])
        return [Candidate(actions, sequence, "captured order")]


STRATEGY = KeepAllStrategy()
