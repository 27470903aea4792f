"""HiRemate: options of clusters of clusters, found from the lowest up (Z 3)."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.clusters.plans import plans_of
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep


class HiRemate:
    """The integer program over the clusters of the highest level, each with options."""

    about = STRATEGIES["hiremate"]

    def supports(self, step: TrainingStep) -> str:
        """A step that comes with a hierarchy."""
        if step.hierarchy is None:
            return "it came without a hierarchy of clusters (combine --hierarchy)"
        return "" if step.hierarchy.forward else "its forward is empty"

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """Every cluster kept, every one computed again, and what the program finds for falling
        budgets."""
        assert step.hierarchy is not None
        problem = step.problem
        found = []
        for plan in plans_of(problem, step.hierarchy, engine=step.engine):
            ops = [problem.nodes[node].op for node in plan.sequence]
            found.append(Candidate(runs(problem, ops), [], plan.origin))
        return found


STRATEGY = HiRemate()
