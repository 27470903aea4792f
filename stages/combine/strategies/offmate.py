"""OffMate: options of blocks of which some of what they keep leaves over a link (Z 4)."""

from __future__ import annotations

from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.offmate.planner import OffmatePlanner
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem, load_strategy
from tightfit.util.strategies import STRATEGIES


class OffMateStrategy:
    """The integer program over the options of all blocks and the bytes on the link."""

    about = STRATEGIES["offmate"]

    def supports(self, step: PlanningProblem) -> str:
        """A step that comes with a link and its graph."""
        if step.link is None or step.graph is None:
            return "it came without a link to an offload target"
        return load_strategy("rockmate").supports(step)

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The plans of Rockmate, and those that send, for falling budgets; none of these without a
        bandwidth."""
        found = load_strategy("rockmate").candidates(step)
        assert step.link is not None and step.graph is not None
        if step.link.bandwidth == 0:
            return found
        problem = step.problem.plain
        values = offloadable_values(step.graph, problem)
        given = (problem, step.blocks, step.options, step.link, values)
        planner = OffmatePlanner(*given, engine=step.engine)
        for plan in planner.plans():
            actions = planner.placer.actions(plan.placed)
            ceiling = plan.placed.ceiling
            found.append(Candidate(actions, plan.sequence, plan.origin, ceiling=ceiling))
        return found


STRATEGY = OffMateStrategy()
