"""Plans of a whole step whose parameters live in an offload target, in part: made, checked,
loaded."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tightfit.api.backward_optimizer import OptimizerSetup, measure_optimizer
from tightfit.api.plan_arguments import PlanningRequest, free_disk_bytes
from tightfit.api.plan_options import (
    GradientOptions,
    OptionalPath,
    ParameterOffloadOptions,
    check_folder,
)
from tightfit.api.plan_result import ChosenPlan
from tightfit.api.stage_runner import StageRunner
from tightfit.api.verification import check_optimizer_steps
from tightfit.schemas.graph.offloadable_parameters import MIN_OFFLOAD_BYTES, offloadable_parameters
from tightfit.schemas.optimizer_plan import OptimizerPlan, OptimizerStepPrediction
from tightfit.util.budget import MAX_BUDGET_BYTES
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.schemas.frontier import Frontier
    from tightfit.schemas.link import HostLink
    from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
    from tightfit.stages.combine.optimizer_offload.search import OffloadSearchResult
    from tightfit.stages.torch_utils.model_factory import BuiltModel


def _microbatch_counts(offload: ParameterOffloadOptions, shapes: int) -> list[int]:
    """How many microbatches of each shape make a step; raises ConfigError where that is not one
    number for each."""
    counts = offload.microbatch_counts
    if isinstance(offload.microbatches, int):
        if shapes > 1:
            raise ConfigError(
                "plan: ParameterOffloadOptions: is for samples of one shape, or for as many "
                "numbers of microbatches"
            )
    elif len(counts) != shapes:
        raise ConfigError(
            "plan: microbatches needs a number for each shape of samples: given are "
            f"{_count_phrase(len(counts), 'number')} for {_count_phrase(shapes, 'shape')}"
        )
    return counts


def _count_phrase(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@dataclass(frozen=True)
class _OffloadCandidate:
    """What was found for the samples of one shape, and what it was made of."""

    built: BuiltModel
    graph: Path
    costs: Path
    updating: OptimizerSetup
    task: OffloadProblem
    found: OffloadSearchResult
    whole: OptimizerStepPrediction


def _fastest_candidate(
    request: PlanningRequest,
    optimizer: torch.optim.Optimizer,
    offload: ParameterOffloadOptions,
    gradients: GradientOptions,
) -> _OffloadCandidate:
    """The fastest plan of a step that is so many microbatches of each shape; raises the first
    ConfigError where none is found."""
    from tightfit.stages.combine.optimizer_offload.command import plan_within_room
    from tightfit.stages.combine.optimizer_offload.min_memory import OffloadTargetTooSmallError

    found, refused = [], None
    runner, counts = request.runner, _microbatch_counts(offload, len(request.samples))
    for built, count in zip(request.samples, counts, strict=True):
        graph = runner.trace(built)
        _check_sizes(graph)
        costs = runner.profile(built, graph)
        updating = measure_optimizer(
            runner, graph, built.model, optimizer, offload.path, away=not gradients.stay
        )
        updating = replace(updating, gradients=gradients)
        try:
            runner.progress.stage("combine")
            task = replace(
                _planning_task(graph, costs, updating, offload, count), engine=runner.engine
            )
            beyond = _disk_tier_link(runner, task.link, offload)
            best = plan_within_room(task, beyond, request.budget)
            whole = _predict_step(*best, updating, "")
        except OffloadTargetTooSmallError as error:
            said = error.with_remedy("limit= of ParameterOffloadOptions", "second_path=")
            refused = refused or ConfigError(f"plan: {said}")
        except ConfigError as error:
            refused = refused or error
        else:
            found.append(_OffloadCandidate(built, graph, costs, updating, *best, whole))
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda each: each.found.seconds)


def plan_with_offloaded_parameters(
    request: PlanningRequest,
    optimizer: torch.optim.Optimizer,
    offload: ParameterOffloadOptions,
    gradients: GradientOptions,
) -> tuple[nn.Module, ChosenPlan]:
    """The plan of a step whose parameters live in an offload target, and its module."""
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.combine.optimizer_offload.plan import write_offload_plan

    check_offload_limit(offload, request.runner.device)
    runner, written = request.runner, request.budget
    best = _fastest_candidate(request, optimizer, offload, gradients)
    built, graph, task, found = best.built, best.graph, best.task, best.found
    place = best.costs.parent / "whole" / _plan_digest(found.updates, written, offload)
    plan = write_offload_plan(place, task, found, written, _graph_digest(graph))
    package = runner.package(graph, place)
    load = partial(_load_package, package, offload, gradients.keep, request.on_mismatch)
    if request.check:
        check_optimizer_steps(runner, read_graph(graph), built, load, optimizer, task.microbatches)
    fitted, stepping = load(built.model, optimizer)
    made = ChosenPlan.of(plan, _no_frontier, lambda _: [], package)
    step = replace(best.whole, schedule=str(place / "schedule.arrow"))
    return fitted, replace(made, optimizer_step=step, optimizer=stepping)


def check_offload_limit(offload: ParameterOffloadOptions, device: str) -> None:
    """Raises ConfigError where a second disk is given, and a GPU's plan is not told what it may
    take of the host's memory."""
    if offload.second_path is not None and offload.limit is None and not device.startswith("cpu"):
        raise ConfigError(
            "plan: second_path needs limit, the bytes of the host's memory that may be taken"
        )


def load_whole(
    package: Path | str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    offload_path: OptionalPath = None,
    on_mismatch: Literal["error", "copy"] = "error",
    second_offload_path: OptionalPath = None,
    keep_gradients: bool = False,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Loads a plan with `ParameterOffloadOptions` from its generated package.

    Args:
        package: Folder of the package.
        model: The model that was planned, or one of the same code and shapes.
        optimizer: Its optimizer, of the kind that the plan was made with.
        offload_path: Folder of the file in which parameters and states live, on the CPU; on a GPU
            they live in the host's memory.
        on_mismatch: What a call that differs from the plan does: raise PlanMismatch ("error"), or
            run the plan on copies of inputs that have other strides ("copy").
        second_offload_path: Folder of the file for states in a second offload tier, if the plan has
            such.
        keep_gradients: Whether the optimizer updates in `step()`, and gradients are on the device
            until then, as with `GradientOptions(keep=True)`.

    Returns:
        The module that takes the place of `model`, and the optimizer that takes the place of
        `optimizer`.

    Raises:
        ArtifactError: The folder has no such package, or one for another model or optimizer, or
            the offload target has no space.
        ConfigError: A path is that of no folder.

    Example:
        >>> module, optimizer = tightfit.load_whole(plan.package, model, adamw, "/mnt/nvme")
    """
    check_folder("load_whole", offload_path, "offload_path")
    check_folder("load_whole", second_offload_path, "second_offload_path")
    offload = ParameterOffloadOptions(offload_path, second_path=second_offload_path)
    return _load_package(package, offload, keep_gradients, on_mismatch, model, optimizer)


def _load_package(
    package: Path | str,
    offload: ParameterOffloadOptions,
    keep_gradients: bool,
    on_mismatch: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> tuple[nn.Module, Any]:
    """The module and the optimizer of a package."""
    from tightfit.stages.validate.load import load_offloaded_module

    first, second = (
        None if each is None else str(each) for each in (offload.path, offload.second_path)
    )
    planned, made = load_offloaded_module(
        package, model, optimizer, first, second, on_mismatch=on_mismatch
    )
    made.keep_gradients = keep_gradients
    return planned, made


def _planning_task(
    graph: Path,
    costs: Path,
    updating: OptimizerSetup,
    offload: ParameterOffloadOptions,
    microbatches: int,
) -> OffloadProblem:
    """The task without a bound on what the device has."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.optimizer_plan import OptimizerCosts
    from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import costs_by_value
    from tightfit.stages.combine.optimizer_offload.problem import build_offload_problem
    from tightfit.stages.runtime.offload.backward_optimizer import PIECE_BYTES

    traced, paid = read_graph(graph), read_costs(costs)
    task = build_offload_problem(
        traced,
        paid,
        _host_link(updating, traced.device, offload),
        costs_by_value(traced, updating.costs),
        MAX_BUDGET_BYTES,
        MIN_OFFLOAD_BYTES,
        microbatches,
        measured=OptimizerCosts(updating.optimizer, PIECE_BYTES, updating.costs, updating.spare),
    )
    if not task.remote:
        raise _no_parameter_error()
    return replace(task, accumulating=updating.gradients.stay)


def _check_sizes(graph: Path) -> None:
    """Raises ConfigError where no parameter is large enough to live in an offload target, ahead of
    all measurements."""
    from tightfit.schemas.graph.training_graph import read_graph

    if not offloadable_parameters(read_graph(graph), MIN_OFFLOAD_BYTES, moves=True):
        raise _no_parameter_error()


def _no_parameter_error() -> ConfigError:
    return ConfigError(
        f"plan: ParameterOffloadOptions: none has {MIN_OFFLOAD_BYTES} bytes or more for itself, "
        "and smaller ones stay on the device: leave it out"
    )


def _host_link(updating: OptimizerSetup, device: str, offload: ParameterOffloadOptions) -> HostLink:
    """The link, as it was measured, with the room that the offload target has now, or as much of it
    as was said."""
    from tightfit.stages.runtime.offload.disk_target import disk_folder_of

    own = updating.link(device)
    free = free_disk_bytes(disk_folder_of(offload.path), "path") if own.to == "disk" else math.inf
    limit = offload.limit_bytes
    return replace(own, room=free if limit is None else min(free, limit))


def _disk_tier_link(
    runner: StageRunner, link: HostLink, offload: ParameterOffloadOptions
) -> HostLink | None:
    """The link to a second offload tier, where there is one, with the room that it has now."""
    from tightfit.schemas.link import HostLink
    from tightfit.stages.profile.link_cache import cached_second_tier_link

    if offload.second_path is None:
        return None
    far = cached_second_tier_link(runner.store, runner.device, offload.path, offload.second_path)
    each, room = min(far.speed.both), free_disk_bytes(offload.second_path, "second_path")
    return HostLink(each, far.speed.latency, False, room, link.to, link.room, far.memory)


def _predict_step(
    task: OffloadProblem, found: OffloadSearchResult, updating: OptimizerSetup, schedule: str
) -> OptimizerStepPrediction:
    """What is predicted of the step."""
    from tightfit.stages.combine.memory_budget import baseline_bytes
    from tightfit.stages.combine.optimizer_offload.gradient_accumulation import accumulation_peaks
    from tightfit.stages.generate.optimizer_step import offload_copy_bytes, step_peaks
    from tightfit.stages.generate.transfers import host_updated_parameters
    from tightfit.stages.simulate.simulate import simulate

    graph, updates, steps = task.graph, found.updates, found.simulation.steps
    own = sum(graph.storages[storage] for storage in task.remote)
    there = sum(graph.storages[graph.values[value].storage] for value in updates.resident)
    fixed, transfers = baseline_bytes(graph), found.simulation.transfers
    here = found.adding is None and not host_updated_parameters(steps)
    adds = accumulation_peaks(graph, task.costs, steps, task.link, updates) if here else None
    last = simulate(graph, task.costs, steps, True, task.link, updates)
    peak, first = step_peaks(graph, steps, updates)
    adding = first_adding = sums = 0
    copies = offload_copy_bytes(graph, steps, updates)
    if found.adding is not None:
        earlier = task.played(updates.resident, here=False, adds=True)
        adding, first_adding = step_peaks(graph, found.adding.steps, earlier)
        copies, sums = max(copies, offload_copy_bytes(graph, found.adding.steps, earlier)), own
    most = max(peak, first, adding, first_adding - task.sums)
    alone = replace(task, accumulating=False).fixed + updates.staging + updates.workspace_bytes
    resident = sum(updates.costs[value].states for value in updates.on_device)
    far, slow = updates.second_tier, updating.slow - resident
    if far is not None:
        slow += far.staging(updates.costs) - far.states(updates.costs)
    return OptimizerStepPrediction(
        optimizer=updating.optimizer,
        total=alone + (adds.most if adds and task.accumulating else there + most),
        parameters=fixed.parameters - own + there,
        buffers=fixed.buffers,
        inputs=fixed.inputs,
        staging=updates.staging,
        peak=peak,
        first_peak=first,
        accumulating_peak=last.peak - there,
        slow_memory=updating.slow_memory,
        slow=slow + own + copies + sums,
        moved=transfers.offloaded_bytes if transfers else 0,
        seconds=found.seconds,
        waited=transfers.wait_seconds if transfers else 0.0,
        schedule=schedule,
        remote=own,
        away=sum(task.size(value) for value in host_updated_parameters(steps)),
        workspace=updates.workspace_bytes,
        microbatches=task.microbatches,
        microbatch_peak=adding,
        first_microbatch_peak=first_adding,
        gradients=adds.gradients if adds else task.sums,
        opening_peak=adds.opening - there if adds else 0,
        adding_peak=adds.adding - there if adds else 0,
        accumulating_total=alone + adds.most if adds else 0,
        far_memory="" if far is None else far.link.to,
        far=0 if far is None else far.states(updates.costs),
        resident=resident,
    )


def _plan_digest(updates: OptimizerPlan, written: str, offload: ParameterOffloadOptions) -> str:
    far = updates.second_tier
    if far is not None:
        # The free bytes of disks change all the time.
        link = replace(far.link, room=math.inf, memory=math.inf)
        updates = replace(updates, second_tier=replace(far, link=link))
    asked = written if offload.limit_bytes is None else f"{written} {offload.limit_bytes}"
    return hashlib.sha256(f"{asked} {updates.text()}".encode()).hexdigest()[:32]


def _graph_digest(graph: Path) -> str:
    from tightfit.schemas.store import read_header

    return read_header(graph).digest


def _no_frontier() -> Frontier:
    raise ConfigError("a plan whose parameters live in an offload target is made for one budget")
