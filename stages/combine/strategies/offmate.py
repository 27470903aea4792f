"""OffMate: options of blocks of which some of what they keep leaves over a link (Z 4)."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.offmate.plans import OffmatePlanner
from tightfit.stages.combine.schedule.leaving import leaving
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep


class OffMate:
    """The integer program over the options of all blocks and the bytes on the link."""

    about = STRATEGIES["offmate"]

    def supports(self, step: TrainingStep) -> str:
        """A step that comes with a link and its graph."""
        if step.link is None or step.graph is None:
            return "it came without a link to another memory"
        return strategy("rockmate").supports(step)

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The plans of Rockmate, and those that send, for falling budgets; none of these without a
        bandwidth."""
        found = strategy("rockmate").candidates(step)
        assert step.link is not None and step.graph is not None
        if step.link.bandwidth == 0:
            return found
        problem = step.problem.plain
        values = leaving(step.graph, problem)
        given = (problem, step.blocks, step.options, step.link, values)
        planner = OffmatePlanner(*given, engine=step.engine)
        for plan in planner.plans():
            actions = planner.placer.actions(plan.placed)
            ceiling = plan.placed.ceiling
            found.append(Candidate(actions, plan.sequence, plan.origin, ceiling=ceiling))
        return found


STRATEGY = OffMate()
