"""The allocators by name, each loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from tightfit.schemas.allocators import ALLOCATORS
from tightfit.schemas.errors import ConfigError
from tightfit.stages.combine.allocate.allocator import Allocator


def allocator(name: str) -> Allocator:
    """The allocator of that name; raises ConfigError when there is none."""
    if name not in ALLOCATORS:
        known = " or ".join(ALLOCATORS)
        raise ConfigError(f"--strategy {name}: a pipeline is planned by {known}")
    about = ALLOCATORS[name]
    package = __package__ or ""
    return cast(Allocator, import_module(f"{package}.allocators.{about.name}").ALLOCATOR)
