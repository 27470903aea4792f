"""Auto: the plans of all other strategies that support the step."""

from __future__ import annotations

from collections.abc import Sequence

from stages.combine.strategies.strategy import About, Candidate, Strategy, TrainingStep


class Auto:
    """What the given strategies plan, together."""

    about = About(
        "auto",
        "the plans of `rotor` and `rockmate` together, the best at each budget",
        solved=True,
    )

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        self.strategies = strategies

    def supports(self, step: TrainingStep) -> str:
        """A step that one of them supports; else why the first does not."""
        said = [strategy.supports(step) for strategy in self.strategies]
        return "" if "" in said else said[0]

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The plans of those that support the step."""
        return [
            candidate
            for strategy in self.strategies
            if not strategy.supports(step)
            for candidate in strategy.candidates(step)
        ]
