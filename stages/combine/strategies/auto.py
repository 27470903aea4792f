"""Auto: the plans of the strategies for a budget that support the step, but for those apart."""

from __future__ import annotations

from tightfit.stages.combine.strategies.strategy import (
    Candidate,
    PlanningProblem,
    Strategy,
    load_strategy,
)
from tightfit.util.strategies import AUTO_STRATEGIES, STRATEGIES


class AutoStrategy:
    """What the others plan, together."""

    about = STRATEGIES["auto"]

    def supports(self, step: PlanningProblem) -> str:
        """A step that one of them supports; else why the first does not."""
        said = [other.supports(step) for other in self._others()]
        return "" if "" in said else said[0]

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The plans of those that support the step."""
        return [
            candidate
            for other in self._others()
            if not other.supports(step)
            for candidate in other.candidates(step)
        ]

    def _others(self) -> list[Strategy]:
        return [load_strategy(name) for name in AUTO_STRATEGIES]


STRATEGY = AutoStrategy()
