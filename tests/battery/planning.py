"""Plans each case once a strategy, and runs all uses on the plan."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.battery.case import Case
from tests.battery.outcome import REFUSED, Load, Outcome, judge, refusal
from tests.battery.registry import Use
from tests.battery.strategies import Strategy

PLANNED = "when planned: "
"""Begins what is said of a model that could not be planned."""


class Planner:
    """Plans into a folder; what was planned once is not planned again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[str, str], Load | Outcome] = {}

    def plan(self, case: Case, strategy: Strategy) -> Load | Outcome:
        """The `load` of a package, or how planning ended."""
        key = (case.name, strategy.name)
        if key not in self.known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    self.known[key] = strategy.plan(case, self.folder)
                except Exception as error:
                    self.known[key] = refusal(error)
        return self.known[key]


def outcomes(
    planner: Planner, case: Case, strategy: Strategy, uses: Sequence[Use]
) -> Iterator[tuple[Use, Outcome]]:
    """What comes of each use; a model that is not planned is refused in all of them."""
    load = planner.plan(case, strategy)
    for use in uses:
        if not isinstance(load, Outcome):
            yield use, judge(case, use, load)
        elif load.kind == REFUSED or use is uses[0]:
            yield use, Outcome(load.kind, PLANNED + load.detail)
