"""The planners of chains with a link by name, each loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.offloaders import OFFLOADERS
from tightfit.stages.combine.offload.plans import Planner


def planner(name: str) -> Planner:
    """The planner of that name; raises ConfigError when there is none."""
    if name not in OFFLOADERS:
        known = " or ".join(OFFLOADERS)
        raise ConfigError(f"--strategy {name}: a chain with a link is planned by {known}")
    return cast(Planner, import_module(f"{__package__}.planners.{name}").PLANNER)
