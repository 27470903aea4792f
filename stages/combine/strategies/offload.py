"""Offload: the plans of auto, from which the search with a link decides what is sent and brought
back instead of kept or run again (`stages.combine.transfers`)."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep


class OffloadStrategy:
    """What auto plans, for a machine with a link."""

    about = STRATEGIES["offload"]

    def supports(self, step: TrainingStep) -> str:
        """A step that auto supports, with a link."""
        if step.link is None:
            return "it came without a link to another memory"
        return strategy("auto").supports(step)

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The plans of auto, without transfers."""
        return strategy("auto").candidates(step)


STRATEGY = OffloadStrategy()
