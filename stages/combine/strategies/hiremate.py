"""HiRemate: options of clusters of clusters, found from the lowest up (Z 3)."""

from __future__ import annotations

from tightfit.stages.combine.hierarchy.planner import plan_clusters
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES


class HiRemateStrategy:
    """The integer program over the clusters of the highest level, each with options."""

    about = STRATEGIES["hiremate"]

    def supports(self, step: PlanningProblem) -> str:
        """A step that comes with a hierarchy."""
        if step.hierarchy is None:
            return "it came without a hierarchy of clusters (combine --hierarchy)"
        return "" if step.hierarchy.forward else "its forward is empty"

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """Every cluster kept, every one computed again, and what the program finds for falling
        budgets."""
        assert step.hierarchy is not None
        problem = step.problem
        found = []
        for plan in plan_clusters(problem, step.hierarchy, engine=step.engine):
            ops = [problem.nodes[node].op for node in plan.sequence]
            found.append(Candidate(run_actions(problem, ops), [], plan.origin))
        return found


STRATEGY = HiRemateStrategy()
