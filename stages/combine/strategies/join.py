"""Joins: branches that meet in the loss, planned together (S ch. 1, J)."""

from __future__ import annotations

from tightfit.stages.combine.chain.frontier import spread_indices
from tightfit.stages.combine.join.detect import StepJoin
from tightfit.stages.combine.join.frontier import JoinFrontier
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.errors import ArtifactError
from tightfit.util.strategies import STRATEGIES

BUDGETS = 24
MAX_STATES = 40_000
"""States of the largest join that is planned, the product of nearly twice the branches' blocks."""


class JoinStrategy:
    """The dynamic program over the branches' blocks, which keep everything or nothing."""

    about = STRATEGIES["join"]

    def supports(self, step: PlanningProblem) -> str:
        """A step whose forward falls into branches that meet in a small head."""
        if not step.blocks.branches:
            return "its forward is no join: no independent parts meet in its loss"
        states = 1
        for branch in step.blocks.branches:
            states *= 2 * len(branch.blocks) + 1
        if states > MAX_STATES:
            return f"its branches are too long for the program of joins, which has {states} states"
        found = StepJoin(step)
        keep_all = JoinFrontier(found.join(), step.slots).keep_all
        if found.executions(keep_all.sequence) is None:
            return "its branches take turns in drawing random numbers or writing buffers"
        return ""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """Plans from keeping everything down to the least memory."""
        found = StepJoin(step)
        plans = JoinFrontier(found.join(), step.slots).plans()
        candidates = []
        for index in spread_indices(len(plans), BUDGETS):
            plan = plans[index]
            executions = found.executions(plan.sequence)
            if executions is not None:
                origin = f"dynamic program of the join, {plan.peak} bytes"
                candidates.append(
                    Candidate(run_actions(step.problem, executions), plan.sequence, origin)
                )
        if not candidates:
            raise ArtifactError("no sequence of the join keeps the order of its random numbers")
        return candidates


STRATEGY = JoinStrategy()
