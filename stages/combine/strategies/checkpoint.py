"""The baselines: what PyTorch does by itself, and with every block checkpointed."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.blocks import Blocks
from schemas.options import Option
from schemas.problem import Problem
from schemas.sequence import Action
from stages.combine.schedule.executions import captured, executions_of
from stages.combine.strategies.candidate import Candidate


def unplanned(
    problem: Problem, blocks: Blocks, options: Mapping[str, list[Option]]
) -> list[Candidate]:
    """The step as it was captured: every op once."""
    last = len(blocks.blocks) + 1
    forward = [Action("F_all", position) for position in range(1, last)]
    backward = [Action("B", position) for position in range(last - 1, 0, -1)]
    words = [str(action) for action in [*forward, Action("loss", last), *backward]]
    return [Candidate([node.op for node in problem.nodes], words, "captured order")]


def checkpoint(
    problem: Problem, blocks: Blocks, options: Mapping[str, list[Option]]
) -> list[Candidate]:
    """Every block keeps its input alone and runs again right before its backward, in captured
    order, as torch.utils.checkpoint does: without the ops that only its output needs."""
    last = len(blocks.blocks) + 1
    sequence = [Action("F_ck", position) for position in range(1, last)]
    sequence.append(Action("loss", last))
    for position in range(last - 1, 0, -1):
        sequence += [Action("F_all", position), Action("B", position)]
    executions = executions_of(problem, blocks, captured(blocks, options), sequence)
    return [Candidate(executions, [str(action) for action in sequence], "every block recomputed")]
