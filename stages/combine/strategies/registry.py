"""The strategies by name."""

from __future__ import annotations

from schemas.registry import entry
from stages.combine.strategies.auto import Auto
from stages.combine.strategies.checkpoint import Checkpoint
from stages.combine.strategies.rockmate import Rockmate
from stages.combine.strategies.rotor import Rotor
from stages.combine.strategies.strategy import Strategy
from stages.combine.strategies.unplanned import Unplanned

PLANNING: list[Strategy] = [Rotor(), Rockmate()]
"""Those that plan for a budget: a new one is a line here."""
STRATEGIES: list[Strategy] = [Unplanned(), Checkpoint(), Auto(PLANNING), *PLANNING]
"""All, baselines first."""


def strategies() -> dict[str, Strategy]:
    """All strategies by name."""
    return {strategy.about.name: strategy for strategy in STRATEGIES}


def strategy(name: str) -> Strategy:
    """The strategy of that name; raises ConfigError when there is none."""
    return entry("strategy", name, strategies())


def chain_strategies() -> list[str]:
    """The names of those that plan chains from files."""
    return [name for name, found in strategies().items() if found.about.chains]
