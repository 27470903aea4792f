"""Auto: the plans of the strategies for a budget that support the step, but for those apart."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES, TRIED_BY_AUTO
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate, Strategy, TrainingStep


class Auto:
    """What the others plan, together."""

    about = STRATEGIES["auto"]

    def supports(self, step: TrainingStep) -> str:
        """A step that one of them supports; else why the first does not."""
        said = [other.supports(step) for other in self._others()]
        return "" if "" in said else said[0]

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The plans of those that support the step."""
        return [
            candidate
            for other in self._others()
            if not other.supports(step)
            for candidate in other.candidates(step)
        ]

    def _others(self) -> list[Strategy]:
        return [strategy(name) for name in TRIED_BY_AUTO]


STRATEGY = Auto()
