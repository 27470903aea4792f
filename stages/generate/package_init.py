"""The text of a package's `__init__.py`, and of `eager.py`: what a plan is, and its `load`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.generate.naming import comment_text, format_megabytes
from tightfit.util.errors import ArtifactError

_FACT_TYPES: dict[str, tuple[type, ...]] = {
    "strategy": (str,),
    "budget": (str,),
    "budget_bytes": (int, type(None)),
    "status": (str,),
    "message": (str,),
    "peak": (int, type(None)),
    "time": (int, float, type(None)),
}


def plan_facts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the package says of its plan; raises ArtifactError naming what is wrong with it."""
    facts = {}
    for name, kinds in _FACT_TYPES.items():
        fact = plan.get(name)
        if not isinstance(fact, kinds) or isinstance(fact, bool):
            raise ArtifactError(f"plan.json: {name!r} is {json.dumps(fact)}, which it cannot be")
        if isinstance(fact, float) and not math.isfinite(fact):
            raise ArtifactError(f"plan.json: {name!r} is not finite")
        facts[name] = fact
    return facts | {"arena": _arena_bytes(plan), "kernels": _kernels_fact(plan)}


def _kernels_fact(plan: Mapping[str, Any]) -> str | None:
    """The kernels that a plan says it runs."""
    kernels = plan.get("kernels")
    if kernels not in (None, "eager", "fused"):
        raise ArtifactError(f"plan.json: 'kernels' is {json.dumps(kernels)}, which it cannot be")
    return cast("str | None", kernels)


def _arena_bytes(plan: Mapping[str, Any]) -> int:
    """The bytes that a plan takes of a GPU ahead of its first step."""
    gpu = plan.get("gpu")
    arena = gpu.get("arena", 0) if isinstance(gpu, Mapping) else 0
    if not isinstance(arena, int) or isinstance(arena, bool) or arena < 0:
        raise ArtifactError(f"plan.json: 'gpu.arena' is {json.dumps(arena)}, which it cannot be")
    return arena


def init_text(graph: Graph, facts: Mapping[str, Any], grouped: bool, beside: bool) -> str:
    """The module `__init__.py` of a plan with these facts: whether it runs groups, and whether the
    plan of eager's kernels is beside it."""
    return _INIT_TEMPLATE.format(
        **_title_fields(graph, facts),
        imports=_GROUPED_IMPORTS if grouped else "",
        parameters=_GROUPED_PARAMETERS if grouped else "",
        about=_GROUPED_ABOUT if grouped else "",
        prepared=_PREPARE_GROUPS.format(eager="eager" if beside else "None") if grouped else "",
        files=PACKAGE_FILES,
        more=", more=more" if grouped else "",
        eager="from . import eager\n" if beside else "",
    )


def eager_plan_text(graph: Graph, facts: Mapping[str, Any]) -> str:
    """The module `eager.py` of a plan of eager's kernels that travels beside one of fused ones."""
    return _EAGER_PLAN_TEMPLATE.format(**_title_fields(graph, facts))


def infeasible_text(facts: Mapping[str, Any]) -> str:
    """The module `__init__.py` of a plan that does not exist."""
    return _INFEASIBLE_TEMPLATE.format(**format_facts(facts))


def _title_fields(graph: Graph, facts: Mapping[str, Any]) -> dict[str, str]:
    peak = "unknown" if facts["peak"] is None else format_megabytes(facts["peak"])
    named = {
        "model": comment_text(graph.model),
        "for_budget": comment_text(facts["budget"]),
        "mb": peak,
    }
    return {**named, **format_facts(facts)}


def format_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as literals, by name."""
    return {name: repr(fact) for name, fact in facts.items()}


PLAN_CONSTANTS = """STRATEGY = {strategy}
BUDGET = {budget}
BUDGET_BYTES = {budget_bytes}
STATUS = {status}
MESSAGE = {message}
PREDICTED_PEAK = {peak}
PREDICTED_SECONDS = {time}
ARENA = {arena}
KERNELS = {kernels}
"""
"""What every package says of its plan."""

PACKAGE_FILES = (
    "Read `step.py` first: it is the plan, op by op. `interface.py` says which calls it is for,\n"
    "`guards.json` what it rests on, `plan.json` what it costs; `runtime/` is support code."
)
"""What a package says of its files."""

_GROUPED_IMPORTS = """from .runtime.kernels.fused_groups import prepare_kernels
from .groups import GROUPS, LIBRARIES
"""
_GROUPED_PARAMETERS = ', libraries=False, without_compiler="error"'
_GROUPED_ABOUT = """
        libraries: Run the compiled libraries of the package where they were compiled for this build
            of PyTorch, this processor and this number of threads; elsewhere compile the groups. A
            library is native code: its digest is in `groups.py`.
        without_compiler: If no kernel can be compiled, raise RuntimeError ("error"), or warn and
            run the plan of eager's kernels in `eager.py` ("eager"), which has a peak of its own."""
_PREPARE_GROUPS = """    more = (libraries, without_compiler)
    given = (GROUPS, INTERFACE.device, LIBRARIES, {eager}, libraries, without_compiler)
    if not prepare_kernels(*given):
        whole = (on_mismatch, load, cuda_graphs, eager.ARENA)
        return wrap_model(model, eager.INTERFACE, eager.step, *whole, more=more, disk=disk)
"""

_INIT_TEMPLATE = (
    '''"""A training step of {model}, planned by tightfit for the budget {for_budget}.

`load(model)` gives a module that takes the place of the model. The step allocates at most
{mb} above parameters, buffers and inputs. Sizes are in bytes.

{files}
"""

{eager}{imports}from .interface import INTERFACE
from .step import step
from .runtime.mismatch import PlanMismatch
from .runtime.planned_module import wrap_model

__all__ = ["PlanMismatch", "load"]

'''
    + PLAN_CONSTANTS
    + '''

def load(model, on_mismatch="error", cuda_graphs=False{parameters}, disk=None):
    """A module that takes the place of `model` and trains within the budget.

    It is of the model's class, shares all its state, and is called as the model is. In `eval()`
    and under `torch.no_grad()` it runs the model's own forward.

    Args:
        model: The model that the plan was made for.
        on_mismatch: What a call does that differs from the one that was planned, in shapes, modes,
            hooks, or attributes and settings that the forward reads: raise PlanMismatch ("error"),
            run the model's own forward ("original"), or, if inputs have other strides alone, copy
            them ("copy"; results may differ from the model's in last bits).
        cuda_graphs: Launch the step as CUDA graphs from the second call on, on a GPU; inputs,
            outputs and their gradients take their bytes once more.{about}
        disk: Folder for tensors that wait on a disk, on a CPU (default: $TIGHTFIT_DISK, then the
            folder for temporary files).

    Returns:
        The module. On a GPU, ARENA bytes are preallocated in one piece before the first step.

    Raises:
        RuntimeError: The model is another one, or CUDA graphs are not possible.
    """
{prepared}    whole = (on_mismatch, load, cuda_graphs, ARENA)
    return wrap_model(model, INTERFACE, step, *whole{more}, disk=disk)
'''
)

_EAGER_PLAN_TEMPLATE = (
    '''"""The plan of eager's kernels that travels beside: a training step of {model}.

It was planned by tightfit for the budget {for_budget}, and allocates at most {mb} above parameters,
buffers and inputs. `load` of the package runs it where kernels cannot be had and
without_compiler="eager" asks for it.
"""

from .eager_interface import INTERFACE
from .eager_step import step
from .runtime.mismatch import PlanMismatch
from .runtime.planned_module import wrap_model

__all__ = ["PlanMismatch", "load"]

'''
    + PLAN_CONSTANTS
    + '''

def load(model, on_mismatch="error", cuda_graphs=False, disk=None):
    """A module that takes the place of `model` and runs this plan; see `load` of the package."""
    return wrap_model(model, INTERFACE, step, on_mismatch, load, cuda_graphs, ARENA, disk=disk)
'''
)

_INFEASIBLE_TEMPLATE = (
    '''"""A budget that no plan fits: `load` says why."""

'''
    + PLAN_CONSTANTS
    + '''

def load(model, on_mismatch="error", cuda_graphs=False, disk=None):
    """Raises RuntimeError: there is no plan."""
    raise RuntimeError(MESSAGE)
'''
)
