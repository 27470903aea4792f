"""The strategies by name, each loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.registry import entry
from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.strategies.strategy import ChainStrategy, Strategy


def strategy(name: str) -> Strategy:
    """The strategy of that name; raises ConfigError when there is none."""
    about = entry("strategy", name, STRATEGIES)
    return cast(Strategy, import_module(f"{__package__}.{about.name}").STRATEGY)


def chain_strategy(name: str) -> ChainStrategy:
    """The strategy of that name, which plans chains from files; raises ConfigError when it does
    not."""
    known = [name for name, about in STRATEGIES.items() if about.chains]
    if name not in known:
        raise ConfigError(f"--strategy {name}: a chain is planned by {' or '.join(known)}")
    return cast(ChainStrategy, strategy(name))
