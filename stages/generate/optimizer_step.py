"""The package of a training step with its optimizer, whose parameters live in an offload target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tightfit.schemas.actions import PassGradient, UpdateOnDevice, UpdateOnHost
from tightfit.schemas.graph.ownership import caller_owned_storages, partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HOST, HostLink
from tightfit.schemas.optimizer_plan import LinkSpeed, OptimizerPlan, ParameterUpdateCost
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.generate.naming import comment_text
from tightfit.stages.generate.package_init import PACKAGE_FILES
from tightfit.stages.generate.transfers import host_updated_parameters
from tightfit.stages.runtime.offload.second_tier import TIER_BUFFERS
from tightfit.stages.simulate.offload_layout import offload_layout
from tightfit.stages.simulate.simulate import device_memory_name
from tightfit.util.errors import ScheduleError

MICROBATCH_PREFIX = "microbatch_"
"""What the names of the files begin with of the program that all microbatches but the last run."""


MicrobatchSchedule = tuple[Sequence[ScheduleStep], OptimizerPlan | None] | None
"""The schedule of each microbatch that is not the last one, where there are several."""


def check_optimizer_step(
    graph: Graph, steps: Sequence[ScheduleStep], updates: OptimizerPlan | None
) -> None:
    """Raises ScheduleError, naming it, for what no program does yet."""
    if updates is None or not updates.has_program:
        if host_updated_parameters(steps):
            raise ScheduleError(
                "the schedule updates in an offload target, where no parameters live"
            )
        return
    if not updates.optimizer or not updates.piece_bytes:
        raise ScheduleError(
            "the schedule has described updates, which say of no optimizer what its states take: "
            "plan with measured ones (`tightfit profile --optimizer`)"
        )
    if odd := sorted(updates.on_device - updates.costs.keys()):
        raise ScheduleError(f"the states of {graph.values[odd[0]].path} stay, and it has none")
    trained = {gradient.value for gradient in graph.gradients}
    for value in sorted(trained):
        described = graph.values[value]
        if described.kind == "parameter" and value not in updates.costs:
            raise ScheduleError(f"{described.path} has a gradient, and is not updated")
    if updates.second_tier is not None and updates.second_tier.buffers != TIER_BUFFERS:
        raise ScheduleError(
            f"states of a second offload tier pass through {updates.second_tier.buffers} buffers "
            "in the schedule, "
            f"and through {TIER_BUFFERS} in a program"
        )
    away = set(host_updated_parameters(steps))
    if not updates.accumulates and (odd := sorted(updates.second_tier_parameters - away)):
        raise ScheduleError(
            f"the states of {graph.values[odd[0]].path} are in a second offload tier, and it is "
            "not updated in the other one"
        )
    _check_host_updates(graph, steps)


def _check_host_updates(graph: Graph, steps: Sequence[ScheduleStep]) -> None:
    """Raises ScheduleError where a gradient that leaves is not as its parameter is."""
    parts = partial_gradients_by_owner(graph)
    for owner in host_updated_parameters(steps):
        own, found = graph.values[owner], graph.values[parts[owner][0]]
        sizes = graph.storages[own.storage], graph.storages[found.storage]
        if (own.dtype, own.strides) != (found.dtype, found.strides) or len(set(sizes)) > 1:
            raise ScheduleError(
                f"{own.path} is updated in an offload target, and its gradient has another dtype "
                "or lies otherwise, which no program sends"
            )


def check_microbatches(updates: OptimizerPlan, adding: MicrobatchSchedule) -> None:
    """Raises ScheduleError where a step of several microbatches lacks the schedule `adding` of
    those that are not the last one, or that is not one of the same step."""
    if updates.accumulates:
        raise ScheduleError("the schedule is that of a microbatch which is not the last one")
    if adding is None:
        if updates.has_sums:
            raise ScheduleError(
                "the schedule is that of the last of several microbatches: give that of the "
                "others, too (`tightfit generate --microbatch`)"
            )
        return
    steps, own = adding
    if not updates.has_sums:
        raise ScheduleError("the schedule is not that of several microbatches")
    same = own is not None and replace(
        own, accumulates=False, has_sums=True, workspace_bytes=0, buffers=0
    )
    if (
        not same
        or same != replace(updates, workspace_bytes=0, buffers=0)
        or not own
        or not own.accumulates
    ):
        raise ScheduleError("the schedule of the other microbatches is that of another step")
    if any(isinstance(step.action, UpdateOnDevice | UpdateOnHost) for step in steps):
        raise ScheduleError("the schedule of the other microbatches updates parameters")


def zero_time_updates(updates: OptimizerPlan) -> OptimizerPlan:
    """The optimizer for the simulator where only the order of steps and sizes matter."""
    nothing = {value: _zero_time_cost(cost) for value, cost in updates.costs.items()}
    fast = LinkSpeed(float("inf"), float("inf"), (float("inf"), float("inf")), 0.0)
    far = updates.second_tier
    if far is not None:
        far = replace(far, link=HostLink(float("inf"), device=HOST, to=far.link.to))
    return replace(updates, costs=nothing, speed=fast, second_tier=far)


def _zero_time_cost(cost: ParameterUpdateCost) -> ParameterUpdateCost:
    """A cost of no time, but for what cannot be."""
    return replace(
        cost,
        seconds=0.0,
        host_seconds=cost.host_seconds if cost.host_seconds == math.inf else 0.0,
        add_seconds=cost.add_seconds if cost.add_seconds == math.inf else 0.0,
    )


def offload_copy_bytes(graph: Graph, steps: Sequence[ScheduleStep], updates: OptimizerPlan) -> int:
    """The bytes of the offload target that a step takes for what it sends beside parameters and
    states."""
    remote = {graph.values[value].storage for value in updates.offloaded}
    return offload_layout(graph, steps, remote).size


def step_peaks(
    graph: Graph, steps: Sequence[ScheduleStep], updates: OptimizerPlan
) -> tuple[int, int]:
    """The most bytes of a step above those from before it, and of the first one, which makes the
    states, as the simulator has written them into the schedule. Of microbatches that add, the first
    one of a step makes the gradients of parameters that live on the device."""
    there = {graph.values[value].storage for value in updates.resident}
    before = sum(graph.storages[storage] for storage in there)
    own, made = device_memory_name(graph), _first_gradient_bytes(graph, updates)
    most = first = more = 0
    for step in steps:
        if step.memory != own:
            continue
        peak = step.peak
        begun = peak + more
        if isinstance(step.action, UpdateOnDevice):
            cost = updates.costs[step.action.value]
            begun += cost.first[0] - cost.peak
            more += cost.first[1] - cost.net
            begun = max(begun, step.live + more)
        if isinstance(step.action, PassGradient):
            more += made.get(step.action.value, 0)
            begun = max(begun, step.live + more)
        most, first = max(most, peak), max(first, begun)
    return most - before, first - before


def _first_gradient_bytes(graph: Graph, updates: OptimizerPlan) -> dict[int, int]:
    """The bytes of the gradients, by value, that stay where a first microbatch adds, and are freed
    in later ones."""
    if not updates.accumulates:
        return {}
    held = caller_owned_storages(graph) | graph.baseline_storages()
    return {
        parts[0]: graph.storages[graph.values[parts[0]].storage]
        for owner, parts in partial_gradients_by_owner(graph).items()
        if graph.values[owner].kind == "parameter"
        and owner not in updates.offloaded
        and graph.values[parts[0]].storage not in held
    }


def offload_spec_text(
    graph: Graph,
    steps: Sequence[ScheduleStep],
    updates: OptimizerPlan,
    adding: MicrobatchSchedule = None,
) -> str:
    """What the package says of the optimizer and of where parameters live, as Python; `adding` is
    the schedule of the microbatches that are not the last one."""
    values = sorted(updates.offloaded)
    paths = tuple(graph.values[value].path for value in values)
    there = tuple(n for n, value in enumerate(values) if value in updates.resident)
    own = sum(graph.storages[graph.values[value].storage] for value in values)
    facts: dict[str, Any] = {
        "optimizer": updates.optimizer,
        **({"settings": dict(updates.settings)} if updates.settings else {}),
        "paths": paths,
        "resident": there,
        "updated": tuple(graph.values[value].path for value in sorted(updates.costs)),
        "piece_bytes": updates.piece_bytes,
        "staging_bytes": updates.staging,
        "parameter_bytes": own,
        "state_bytes": updates.offloaded_state_bytes,
        "activation_bytes": offload_copy_bytes(graph, steps, updates),
        **dict(zip(("peak", "first_peak"), step_peaks(graph, steps, updates), strict=True)),
    }
    away = set(host_updated_parameters(steps))
    if away:
        facts["host_updated"] = tuple(n for n, value in enumerate(values) if value in away)
        facts["workspace_bytes"] = updates.workspace_bytes
    if updates.second_tier is not None:
        facts["second_tier"] = tuple(
            n for n, value in enumerate(values) if value in updates.second_tier_parameters
        )
        facts["second_tier_bytes"] = updates.second_tier.states(updates.costs)
        facts["second_tier_staging_bytes"] = updates.second_tier.staging(updates.costs)
    if updates.on_device:
        stay = sorted(updates.on_device)
        facts["device_states"] = tuple(graph.values[value].path for value in stay)
        facts["device_state_bytes"] = sum(updates.costs[value].states for value in stay)
    if adding is not None:
        others, adds = adding
        assert adds is not None
        facts["activation_bytes"] = max(
            facts["activation_bytes"], offload_copy_bytes(graph, others, adds)
        )
        facts |= {"microbatches": updates.microbatches, "gradient_sum_bytes": own}
        names = ("microbatch_peak", "first_microbatch_peak")
        facts |= dict(zip(names, step_peaks(graph, others, adds), strict=True))
    return "\n".join(
        ["OffloadSpec(", *(f"    {name}={fact!r}," for name, fact in facts.items()), ")"]
    )


def optimizer_init_text(
    graph: Graph, spec: str, constants: str, shown: Mapping[str, str], adds: bool = False
) -> str:
    """The text of `__init__.py`; `constants` are what the package says of its plan, and it `adds`
    gradients of microbatches up."""
    made = constants.format(**shown)
    return _INIT_TEMPLATE.format(
        model=comment_text(graph.model),
        files=PACKAGE_FILES,
        budget=shown["budget"],
        constants=made,
        spec=spec,
        imports=_MORE_IMPORTS if adds else "",
        microbatches=_MICROBATCHES if adds else "",
        microbatch=", (microbatch_step, MICROBATCH_INTERFACE)" if adds else "",
    )


_MORE_IMPORTS = """
from .microbatch_interface import INTERFACE as MICROBATCH_INTERFACE
from .microbatch_step import step as microbatch_step"""
_MICROBATCHES = """
    Of several microbatches each but the last one runs, forward and backward, within
    `optimizer.accumulating()`: its gradients are added up where parameters live.
"""


_INIT_TEMPLATE = '''"""A training step of {model} with its optimizer, planned for {budget}.

`load(model, optimizer)` gives a module that takes the place of the model, and an optimizer that
takes the place of the optimizer. Sizes are in bytes.

{files}
"""

from .interface import INTERFACE
from .runtime.mismatch import PlanMismatch
from .runtime.offload.setup import OffloadedModule, OffloadSpec, offload_parameters
from .runtime.planned_module import wrap_model{imports}
from .step import step

__all__ = ["PlanMismatch", "load"]

{constants}OFFLOAD_PLAN = {spec}


def load(model, optimizer, disk=None, on_mismatch="error", second_disk=None):
    """A module that takes the place of `model`, and an optimizer that takes that of `optimizer`.

    Parameters named in OFFLOAD_PLAN, and all states of the optimizer, live in an offload target:
    on a CPU in a file in the folder `disk` (default: $TIGHTFIT_DISK, then the temporary folder), on
    a GPU in the host's memory. States of those in `second_tier` of OFFLOAD_PLAN are in a file of
    the folder `second_disk`. A step brings what it needs. The backward updates each parameter as
    soon as its gradient is whole; `optimizer.step()` ends the step. Parameters stay the objects
    that they were. Read their values within `optimizer.gathered()`, or in `state_dict()` of module
    and optimizer; any other read is refused.
{microbatches}
    The module is called as the model is; a call that differs from what the plan was made for raises
    PlanMismatch. With on_mismatch="copy" inputs that only lie otherwise in memory than the sample's
    are copied.
    """
    if on_mismatch == "original":
        raise RuntimeError(
            "the original model needs all parameters on the device, and the plan has them in "
            "an offload target: leave on_mismatch out"
        )
    store, backward_optimizer = offload_parameters(
        model, optimizer, OFFLOAD_PLAN, disk, second_disk
    )
    try:
        offloaded = OffloadedModule(store, INTERFACE.offloaded_parameters{microbatch})
        planned = wrap_model(model, INTERFACE, step, on_mismatch, load, offloaded=offloaded)
    except BaseException:
        backward_optimizer.close()
        raise
    return planned, backward_optimizer
'''
