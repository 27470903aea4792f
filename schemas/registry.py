"""Registries: what there is of a kind, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from tightfit.schemas.errors import ConfigError

T = TypeVar("T")


def entry(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry of that name; raises ConfigError, which names what there is, when there is none."""
    if name not in known:
        raise ConfigError(f"{kind} {name!r} is not known, expected one of {', '.join(known)}")
    return known[name]
