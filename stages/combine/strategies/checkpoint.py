"""The baseline that checkpoints every block, as torch.utils.checkpoint does."""

from __future__ import annotations

from tightfit.schemas.sequence import Operation
from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.schedule.executions import captured, executions_of, runs
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep


class Checkpoint:
    """Every block keeps its input alone and runs again right before its backward, in captured
    order, without the ops that only its output needs."""

    about = STRATEGIES["checkpoint"]

    def supports(self, step: TrainingStep) -> str:
        """Every step."""
        return ""

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The one plan that recomputes every block."""
        last = len(step.blocks.blocks) + 1
        sequence = [Operation("F_ck", position) for position in range(1, last)]
        sequence.append(Operation("loss", last))
        for position in range(last - 1, 0, -1):
            sequence += [Operation("F_all", position), Operation("B", position)]
        options = captured(step.blocks, step.options)
        executions = executions_of(step.problem, step.blocks, options, sequence)
        actions = runs(step.problem, executions)
        return [Candidate(actions, sequence, "every block recomputed")]


STRATEGY = Checkpoint()
