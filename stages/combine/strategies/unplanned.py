"""The baseline that PyTorch is by itself."""

from __future__ import annotations

from tightfit.schemas.sequence import Operation
from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep


class Unplanned:
    """The step as it was captured: every op once."""

    about = STRATEGIES["unplanned"]

    def supports(self, step: TrainingStep) -> str:
        """Every step."""
        return ""

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The captured order."""
        last = len(step.blocks.blocks) + 1
        forward = [Operation("F_all", position) for position in range(1, last)]
        backward = [Operation("B", position) for position in range(last - 1, 0, -1)]
        sequence = [*forward, Operation("loss", last), *backward]
        actions = runs(step.problem, [node.op for node in step.problem.nodes])
        return [Candidate(actions, sequence, "captured order")]


STRATEGY = Unplanned()
