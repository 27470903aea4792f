"""The baseline that checkpoints every block, as torch.utils.checkpoint does."""

from __future__ import annotations

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.lowering.blocks import (
    captured_options,
    lower_to_executions,
    run_actions,
)
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES


class CheckpointStrategy:
    """Every block keeps its input alone and runs again right before its backward, in captured
    order, without the ops that only its output needs."""

    about = STRATEGIES["checkpoint_all"]

    def supports(self, step: PlanningProblem) -> str:
        """Every step."""
        return ""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The one plan that recomputes every block."""
        last = len(step.blocks.blocks) + 1
        sequence = [ChainOperation("F_ck", position) for position in range(1, last)]
        sequence.append(ChainOperation("loss", last))
        for position in range(last - 1, 0, -1):
            sequence += [ChainOperation("F_all", position), ChainOperation("B", position)]
        options = captured_options(step.blocks, step.options)
        executions = lower_to_executions(step.problem, step.blocks, options, sequence)
        actions = run_actions(step.problem, executions)
        return [Candidate(actions, sequence, "every block recomputed")]


STRATEGY = CheckpointStrategy()
