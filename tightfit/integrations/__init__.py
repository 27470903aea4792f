"""Plans for training loops that others wrote: transformers' Trainer and those of trl, Lightning,
and any loop that calls a model.

`Fit` and `LightningFit` load transformers and Lightning when they are first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tightfit.integrations.first_call import FirstCallPlan as FirstCallPlan
from tightfit.integrations.first_call import plan_at_first_call as plan_at_first_call
from tightfit.integrations.trainer import model_output_loss as model_output_loss
from tightfit.integrations.trainer import plan_trainer as plan_trainer

if TYPE_CHECKING:
    from tightfit.integrations.lightning_callback import LightningFit as LightningFit
    from tightfit.integrations.trainer_callback import Fit as Fit

__all__ = [
    "FirstCallPlan",
    "Fit",
    "LightningFit",
    "model_output_loss",
    "plan_at_first_call",
    "plan_trainer",
]

_LAZY_EXPORTS = {
    "Fit": "tightfit.integrations.trainer_callback",
    "LightningFit": "tightfit.integrations.lightning_callback",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_EXPORTS:
        return getattr(import_module(_LAZY_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
