"""The stages of tightfit, one package each; importing this loads none of them.

`stages.plan(model, args, kwargs, budget="50%")` is `tightfit.plan`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.planning import plan as plan

__all__ = ["plan"]


def __getattr__(name: str) -> Any:
    if name == "plan":
        return import_module("tightfit.planning").plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
