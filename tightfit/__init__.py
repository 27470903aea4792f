"""Makes PyTorch training fit a memory budget.

    fitted, made = tightfit.plan(model, args, kwargs, budget="8GiB")

gives a module that takes the place of `model`, and what is known of its plan. `tightfit.load` takes
a plan that was made before. PyTorch and the stages are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tightfit.mismatch import PlanMismatch
from tightfit.schemas.errors import (
    ArtifactError,
    ConfigError,
    ModelError,
    TightfitError,
)

if TYPE_CHECKING:
    from tightfit.away import load_whole as load_whole
    from tightfit.choices import ChosenPlan as ChosenPlan
    from tightfit.pipelines import MadePipeline as MadePipeline
    from tightfit.pipelines import load_pipeline as load_pipeline
    from tightfit.pipelines import plan_pipeline as plan_pipeline
    from tightfit.planning import load as load
    from tightfit.planning import plan as plan
    from tightfit.schemas.plan import Plan as Plan
    from tightfit.whole import in_backward as in_backward

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "ChosenPlan",
    "ConfigError",
    "MadePipeline",
    "ModelError",
    "Plan",
    "PlanMismatch",
    "TightfitError",
    "__version__",
    "in_backward",
    "load",
    "load_pipeline",
    "load_whole",
    "plan",
    "plan_pipeline",
]

_LATER = {
    "ChosenPlan": "tightfit.choices",
    "MadePipeline": "tightfit.pipelines",
    "Plan": "tightfit.schemas.plan",
    "in_backward": "tightfit.whole",
    "load": "tightfit.planning",
    "load_pipeline": "tightfit.pipelines",
    "load_whole": "tightfit.away",
    "plan": "tightfit.planning",
    "plan_pipeline": "tightfit.pipelines",
}


def __getattr__(name: str) -> Any:
    if name == "integrations":
        return import_module("tightfit.integrations")
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
