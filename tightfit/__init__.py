"""Makes PyTorch training fit a memory budget.

    module, plan = tightfit.plan(model, args, kwargs, budget="8GiB")

gives a module that takes the place of `model`, and what is known of its plan. `tightfit.load` takes
a plan that was made before. PyTorch and the stages are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tightfit.mismatch import PlanMismatch
from tightfit.util.errors import ArtifactError, ConfigError, ModelError, TightfitError

if TYPE_CHECKING:
    from tightfit.api.backward_optimizer import in_backward as in_backward
    from tightfit.api.checkpoint_policy import (
        ActivationCheckpointPolicy as ActivationCheckpointPolicy,
    )
    from tightfit.api.checkpoint_policy import checkpoint_policy as checkpoint_policy
    from tightfit.api.compile_budget import compile_budget as compile_budget
    from tightfit.api.compile_budget import set_compile_budget as set_compile_budget
    from tightfit.api.parameter_offload import load_whole as load_whole
    from tightfit.api.pipeline_parallel import MadePipeline as MadePipeline
    from tightfit.api.pipeline_parallel import load_pipeline as load_pipeline
    from tightfit.api.pipeline_parallel import plan_pipeline as plan_pipeline
    from tightfit.api.plan_options import FusedKernelOptions as FusedKernelOptions
    from tightfit.api.plan_options import GradientOptions as GradientOptions
    from tightfit.api.plan_options import OffloadOptions as OffloadOptions
    from tightfit.api.plan_options import ParameterOffloadOptions as ParameterOffloadOptions
    from tightfit.api.plan_options import ReplanOptions as ReplanOptions
    from tightfit.api.plan_options import SolverOptions as SolverOptions
    from tightfit.api.plan_result import ChosenPlan as ChosenPlan
    from tightfit.api.planning import load as load
    from tightfit.api.planning import plan as plan
    from tightfit.schemas.chain import Chain as Chain
    from tightfit.schemas.chain import ChainPosition as ChainPosition
    from tightfit.schemas.chain import read_chain as read_chain
    from tightfit.schemas.chain import write_chain as write_chain
    from tightfit.schemas.plan import Plan as Plan
    from tightfit.stages.torch_utils.memory_meter import memory_session as memory_session

__version__ = "0.1.0"

__all__ = [
    "ActivationCheckpointPolicy",
    "ArtifactError",
    "Chain",
    "ChainPosition",
    "ChosenPlan",
    "ConfigError",
    "FusedKernelOptions",
    "GradientOptions",
    "MadePipeline",
    "ModelError",
    "OffloadOptions",
    "ParameterOffloadOptions",
    "Plan",
    "PlanMismatch",
    "ReplanOptions",
    "SolverOptions",
    "TightfitError",
    "__version__",
    "checkpoint_policy",
    "compile_budget",
    "in_backward",
    "load",
    "load_pipeline",
    "load_whole",
    "memory_session",
    "plan",
    "plan_pipeline",
    "read_chain",
    "set_compile_budget",
    "write_chain",
]

_LAZY_EXPORTS = {
    "ActivationCheckpointPolicy": "tightfit.api.checkpoint_policy",
    "Chain": "tightfit.schemas.chain",
    "ChainPosition": "tightfit.schemas.chain",
    "ChosenPlan": "tightfit.api.plan_result",
    "FusedKernelOptions": "tightfit.api.plan_options",
    "GradientOptions": "tightfit.api.plan_options",
    "MadePipeline": "tightfit.api.pipeline_parallel",
    "OffloadOptions": "tightfit.api.plan_options",
    "ParameterOffloadOptions": "tightfit.api.plan_options",
    "ReplanOptions": "tightfit.api.plan_options",
    "SolverOptions": "tightfit.api.plan_options",
    "Plan": "tightfit.schemas.plan",
    "checkpoint_policy": "tightfit.api.checkpoint_policy",
    "compile_budget": "tightfit.api.compile_budget",
    "in_backward": "tightfit.api.backward_optimizer",
    "load": "tightfit.api.planning",
    "load_pipeline": "tightfit.api.pipeline_parallel",
    "load_whole": "tightfit.api.parameter_offload",
    "memory_session": "tightfit.stages.torch_utils.memory_meter",
    "plan": "tightfit.api.planning",
    "plan_pipeline": "tightfit.api.pipeline_parallel",
    "read_chain": "tightfit.schemas.chain",
    "set_compile_budget": "tightfit.api.compile_budget",
    "write_chain": "tightfit.schemas.chain",
}


def __getattr__(name: str) -> Any:
    if name == "integrations":
        return import_module("tightfit.integrations")
    if name in _LAZY_EXPORTS:
        return getattr(import_module(_LAZY_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
