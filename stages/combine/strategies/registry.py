"""The strategies by name, each loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from schemas.registry import entry
from schemas.strategies import STRATEGIES
from stages.combine.strategies.strategy import Strategy


def strategy(name: str) -> Strategy:
    """The strategy of that name; raises ConfigError when there is none."""
    about = entry("strategy", name, STRATEGIES)
    return cast(Strategy, import_module(f"{__package__}.{about.name}").STRATEGY)


def chain_strategies() -> list[str]:
    """The names of those that plan chains from files."""
    return [name for name, about in STRATEGIES.items() if about.chains]
