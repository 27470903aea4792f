"""Plans of a whole step whose parameters live in another memory, in part: made, checked, loaded."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from schemas.budget import LARGEST
from schemas.errors import ConfigError, ModelError
from schemas.updates import Updates, WholeStep
from tightfit.choices import ChosenPlan
from tightfit.route import FUSED, Route
from tightfit.settings import check_folder
from tightfit.whole import Updating, measured

if TYPE_CHECKING:
    import torch
    from torch import nn

    from schemas.frontier import Frontier
    from schemas.link import HostLink
    from stages.combine.whole.search import Found
    from stages.combine.whole.task import Task
    from stages.device.factory import Built

Parameters = Literal["device", "away"]
Microbatches = int | Sequence[int]
"""How many microbatches make a step: of the sample, or of each shape, of which one is chosen."""
SMALL = 1 << 20
"""Parameters of fewer bytes stay on the device."""


def check_parameters(
    parameters: str,
    optimizer: object,
    route: Route,
    otherwise: str,
    cuda_graphs: bool,
    shapes: int,
    microbatches: Microbatches,
) -> None:
    """Raises ConfigError where parameters cannot live where they are to live."""
    if parameters not in ("device", "away"):
        raise ConfigError(f'plan: parameters is {parameters!r}, expected "device" or "away"')
    counts = _counts(microbatches, shapes)
    if parameters == "device" and max(counts) > 1:
        raise ConfigError(
            'plan: microbatches: their gradients add up in another memory, for parameters="away": '
            "on the device they add up anyway"
        )
    if parameters == "device":
        return
    for wrong, said in (
        (optimizer is None, "needs the optimizer, which updates them in the backward"),
        (
            shapes > 1 and isinstance(microbatches, int),
            "is for samples of one shape, or for as many numbers of microbatches",
        ),
        (route.strategy != "auto", "has a strategy of its own: leave strategy out"),
        (route.machine is not None, "measures the link itself: leave machine out"),
        (route.kernels == FUSED, "is not made with fused kernels yet"),
        (cuda_graphs, "is not made of CUDA graphs"),
        (otherwise == "original", "has no original to run, which needs all of them"),
    ):
        if wrong:
            raise ConfigError(f'plan: parameters="away": {said}')


def _counts(microbatches: Microbatches, shapes: int) -> list[int]:
    """How many microbatches of each shape make a step; raises ConfigError where that is no number,
    or not one for each."""
    several = isinstance(microbatches, Sequence) and not isinstance(microbatches, str)
    counts: list[int] = [*microbatches] if several else [microbatches]  # type: ignore[misc, list-item]
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"plan: microbatches is {count!r}, expected a number from 1 on")
    if several and len(counts) != shapes:
        raise ConfigError(
            f"plan: microbatches needs a number for each shape of samples: given are {len(counts)} "
            f"for {shapes}"
        )
    return counts


@dataclass(frozen=True)
class _Planned:
    """What was found for the samples of one shape, and what it was made of."""

    built: Built
    graph: Path
    costs: Path
    updating: Updating
    task: Task
    found: Found


def _fastest(
    route: Route,
    given: Sequence[Built],
    written: str,
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None,
    counts: Sequence[int],
    accumulating: bool,
) -> _Planned:
    """The fastest plan of a step that is so many microbatches of each shape; raises the first
    ConfigError where none is found."""
    from stages.combine.whole.budgets import planned

    found, refused = [], None
    for built, count in zip(given, counts, strict=True):
        graph = route.trace(built)
        costs = route.profile(built, graph)
        updating = measured(route, graph, built.model, optimizer, disk, away=not accumulating)
        updating = replace(updating, accumulates=accumulating)
        try:
            route.progress.stage("combine")
            task = replace(_task(graph, costs, updating, disk, count), engine=route.engine)
            task, best = planned(task, written)
        except ConfigError as error:
            refused = refused or error
        else:
            found.append(_Planned(built, graph, costs, updating, task, best))
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda each: each.found.seconds)


def planned_away(
    route: Route,
    given: Sequence[Built],
    written: str,
    otherwise: str,
    check: bool,
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None,
    microbatches: Microbatches = 1,
    accumulating: bool = False,
) -> tuple[nn.Module, ChosenPlan]:
    """The plan of a step whose parameters live in another memory, and its module."""
    from schemas.graph import read_graph
    from stages.combine.whole.plans import write_found
    from stages.validate.load import load_lodged

    counts = _counts(microbatches, len(given))
    best = _fastest(route, given, written, optimizer, disk, counts, accumulating)
    built, graph, task, found = best.built, best.graph, best.task, best.found
    place = best.costs.parent / "whole" / _digest(found.updates, written)
    plan = write_found(place, task, found, written, _digest_of(graph))
    module = route.module(graph, place)
    folder = None if disk is None else str(disk)
    if check:
        _check(route, read_graph(graph), built, module, optimizer, folder, task.microbatches)
    fitted, stepping = load_lodged(module, built.model, optimizer, folder, otherwise=otherwise)
    made = ChosenPlan.of(plan, _no_frontier, lambda _: [], module)
    whole = _whole(task, found, best.updating, str(place / "schedule.arrow"))
    object.__setattr__(made, "whole", whole)
    object.__setattr__(made, "optimizer", stepping)
    return fitted, made


def load_whole(
    package: Path | str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None = None,
    otherwise: Literal["error", "copy"] = "error",
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The module that takes the place of `model`, and the optimiser that takes the place of
    `optimizer`, by the generated package of a plan whose parameters live in another memory: in a
    file of the folder `disk`, on a GPU in the host's memory.

    Raises ArtifactError where the folder holds no such package, or one for another model or
    optimiser, or where the other memory has no room, ConfigError where `disk` is no folder's path.
    """
    from stages.validate.load import load_lodged

    check_folder("load_whole", disk)
    folder = None if disk is None else str(disk)
    return load_lodged(package, model, optimizer, folder, otherwise=otherwise)


def _task(
    graph: Path,
    costs: Path,
    updating: Updating,
    disk: Path | str | None,
    microbatches: int,
) -> Task:
    """The task without a bound on what the device has."""
    from schemas.costs import read_costs
    from schemas.graph import read_graph
    from schemas.measured_updates import MeasuredUpdates
    from stages.combine.whole.backward import costs_by_value
    from stages.combine.whole.task import task_of
    from stages.device.optimiser import PIECE_BYTES

    traced, paid = read_graph(graph), read_costs(costs)
    task = task_of(
        traced,
        paid,
        _link(updating, traced.device, disk),
        costs_by_value(traced, updating.costs),
        LARGEST,
        SMALL,
        microbatches,
        measured=MeasuredUpdates(updating.optimizer, PIECE_BYTES, updating.costs, updating.spare),
    )
    if not task.remote:
        raise ConfigError(
            f'plan: parameters="away": none has {SMALL} bytes or more for itself, and smaller ones '
            "stay on the device: leave it out"
        )
    return replace(task, accumulating=updating.accumulates)


def _link(updating: Updating, device: str, disk: Path | str | None) -> HostLink:
    """The link, as it was measured, with the room that the other memory has now."""
    from stages.device.disk import folder_of

    own = updating.link(device)
    room = shutil.disk_usage(folder_of(disk)).free if own.to == "disk" else math.inf
    return replace(own, room=room)


def _check(
    route: Route,
    graph: Any,
    built: Built,
    module: Path,
    optimizer: torch.optim.Optimizer,
    folder: str | None,
    microbatches: int,
) -> None:
    """Raises ModelError where steps of the module do not do what those of the model do."""
    from stages.validate.load import load_lodged
    from stages.validate.lodged import check_lodged

    route.progress.stage("check")
    said = check_lodged(
        graph,
        built,
        lambda model, own: load_lodged(module, model, own, folder),
        optimizer,
        microbatches,
    )
    if said:
        raise ModelError(said)


def _whole(task: Task, found: Found, updating: Updating, schedule: str) -> WholeStep:
    """What is predicted of the step."""
    from stages.combine.fixed import fixed_bytes
    from stages.combine.whole.accumulating import accumulating
    from stages.generate.remote import away_of
    from stages.generate.whole import copies_bytes, peaks
    from stages.replay.referee import replay

    graph, updates, steps = task.graph, found.updates, found.replay.steps
    own = sum(graph.storages[storage] for storage in task.remote)
    there = sum(graph.storages[graph.values[value].storage] for value in updates.there)
    fixed, transfers = fixed_bytes(graph), found.replay.transfers
    here = found.adding is None and not away_of(steps)
    adds = accumulating(graph, task.costs, steps, task.link, updates) if here else None
    last = replay(graph, task.costs, steps, True, task.link, updates)
    peak, first = peaks(graph, steps, updates)
    adding = first_adding = sums = 0
    copies = copies_bytes(graph, steps, updates)
    if found.adding is not None:
        earlier = task.played(updates.there, here=False, adds=True)
        adding, first_adding = peaks(graph, found.adding.steps, earlier)
        copies, sums = max(copies, copies_bytes(graph, found.adding.steps, earlier)), own
    most = max(peak, first, adding, first_adding - task.sums)
    alone = replace(task, accumulating=False).fixed + updates.staging + updates.bench
    return WholeStep(
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
        slow=updating.slow + own + copies + sums,
        moved=transfers.left if transfers else 0,
        seconds=found.seconds,
        waited=transfers.waited if transfers else 0.0,
        schedule=schedule,
        remote=own,
        away=sum(task.size(value) for value in away_of(steps)),
        bench=updates.bench,
        microbatches=task.microbatches,
        microbatch_peak=adding,
        first_microbatch_peak=first_adding,
        gradients=adds.gradients if adds else 0,
        opening_peak=adds.opening - there if adds else 0,
        adding_peak=adds.adding - there if adds else 0,
        accumulating_total=alone + adds.most if adds else 0,
    )


def _digest(updates: Updates, written: str) -> str:
    return hashlib.sha256(f"{written} {updates.text()}".encode()).hexdigest()[:32]


def _digest_of(graph: Path) -> str:
    from schemas.store import header

    return header(graph).digest


def _no_frontier() -> Frontier:
    raise ConfigError("a plan whose parameters live in another memory is made for one budget")
