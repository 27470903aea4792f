"""Offload: the plans of auto, from which the search with a link decides what is sent and brought
back instead of kept or run again (`stages.combine.activation_offload`)."""

from __future__ import annotations

from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem, load_strategy
from tightfit.util.strategies import STRATEGIES


class OffloadStrategy:
    """What auto plans, for a machine with a link."""

    about = STRATEGIES["offload"]

    def supports(self, step: PlanningProblem) -> str:
        """A step that auto supports, with a link."""
        if step.link is None:
            return "it came without a link to an offload target"
        return load_strategy("auto").supports(step)

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The plans of auto, without transfers."""
        return load_strategy("auto").candidates(step)


STRATEGY = OffloadStrategy()
