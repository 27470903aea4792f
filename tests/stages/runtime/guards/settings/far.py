"""Settings that a model reads through the functions of several files."""

from __future__ import annotations

from tests.stages.runtime.guards.settings import farther
from tests.stages.runtime.guards.settings.farther import SETTINGS

__all__ = ["SETTINGS", "amount"]


def amount() -> float:
    return farther.scaled()
