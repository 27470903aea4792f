"""Plans of a whole step whose parameters live in another memory, in part: made, checked, loaded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tightfit.checked import check_steps
from tightfit.choices import ChosenPlan
from tightfit.memories import Memories, free_bytes
from tightfit.route import FUSED, Route
from tightfit.schemas.budget import LARGEST
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.updates import Updates, WholeStep
from tightfit.settings import check_folder
from tightfit.whole import GradientSettings, Updating, measured

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.schemas.frontier import Frontier
    from tightfit.schemas.link import HostLink
    from tightfit.stages.combine.whole.search import Found
    from tightfit.stages.combine.whole.task import Task
    from tightfit.stages.device.factory import Built

Parameters = Literal["device", "away"]
Microbatches = int | Sequence[int]
"""How many microbatches make a step: of the sample, or of each shape, of which one is chosen."""
ROOMS = 4
"""How often a plan is looked for with less room in the other memory where one takes too much."""
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
            "plan: microbatches needs a number for each shape of samples: given are "
            f"{_counted(len(counts), 'number')} for {_counted(shapes, 'shape')}"
        )
    return counts


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@dataclass(frozen=True)
class _Planned:
    """What was found for the samples of one shape, and what it was made of."""

    built: Built
    graph: Path
    costs: Path
    updating: Updating
    task: Task
    found: Found
    whole: WholeStep


def _fastest(
    route: Route,
    given: Sequence[Built],
    written: str,
    optimizer: torch.optim.Optimizer,
    memories: Memories,
    counts: Sequence[int],
    gradients: GradientSettings,
) -> _Planned:
    """The fastest plan of a step that is so many microbatches of each shape; raises the first
    ConfigError where none is found."""
    found, refused = [], None
    for built, count in zip(given, counts, strict=True):
        graph = route.trace(built)
        _check_sizes(graph)
        costs = route.profile(built, graph)
        disk, away = memories.disk, not gradients.stay
        updating = measured(route, graph, built.model, optimizer, disk, away=away)
        updating = replace(updating, gradients=gradients)
        try:
            route.progress.stage("combine")
            task = replace(_task(graph, costs, updating, memories, count), engine=route.engine)
            beyond = _beyond(route, task.link, memories)
            best = _within_room(task, beyond, updating, written)
        except ConfigError as error:
            refused = refused or error
        else:
            found.append(_Planned(built, graph, costs, updating, *best))
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda each: each.found.seconds)


def _within_room(
    task: Task, beyond: HostLink | None, updating: Updating, written: str
) -> tuple[Task, Found, WholeStep]:
    """The fastest plan with the fewest states behind a link `beyond` the other memory, and what is
    predicted of it. What a step sends takes places there, which can be more bytes than are ever
    sent at once: a plan that takes more than there is room for is looked for anew with less. Raises
    ConfigError where none is found."""
    from tightfit.stages.combine.whole.command import planned

    room, sized = task.link.room, task
    for _ in range(ROOMS):
        own, found = planned(sized, beyond, written)
        whole = _whole(own, found, updating, "")
        if whole.slow <= room:
            return own, found, whole
        less = sized.link.room - (whole.slow - room)
        sized = replace(sized, link=replace(sized.link, room=less))
    raise ConfigError(
        f"the step takes {whole.slow:,} bytes in {task.link.other}, which has {int(room):,}: give "
        "it more by room="
    )


def planned_away(
    route: Route,
    given: Sequence[Built],
    written: str,
    otherwise: str,
    check: bool,
    optimizer: torch.optim.Optimizer,
    memories: Memories,
    microbatches: Microbatches,
    gradients: GradientSettings,
) -> tuple[nn.Module, ChosenPlan]:
    """The plan of a step whose parameters live in another memory, and its module."""
    from tightfit.schemas.graph import read_graph
    from tightfit.stages.combine.whole.plans import write_found

    counts = _counts(microbatches, len(given))
    best = _fastest(route, given, written, optimizer, memories, counts, gradients)
    built, graph, task, found = best.built, best.graph, best.task, best.found
    place = best.costs.parent / "whole" / _digest(found.updates, written, memories)
    plan = write_found(place, task, found, written, _digest_of(graph))
    module = route.module(graph, place)
    load = partial(_load, module, memories, gradients.keep, otherwise)
    if check:
        check_steps(route, read_graph(graph), built, load, optimizer, task.microbatches)
    fitted, stepping = load(built.model, optimizer)
    made = ChosenPlan.of(plan, _no_frontier, lambda _: [], module)
    whole = replace(best.whole, schedule=str(place / "schedule.arrow"))
    object.__setattr__(made, "whole", whole)
    object.__setattr__(made, "optimizer", stepping)
    return fitted, made


def load_whole(
    package: Path | str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None = None,
    otherwise: Literal["error", "copy"] = "error",
    far_disk: Path | str | None = None,
    keep_gradients: bool = False,
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The module that takes the place of `model`, and the optimiser that takes the place of
    `optimizer`, by the generated package of a plan whose parameters live in another memory: in a
    file of the folder `disk`, on a GPU in the host's memory. Where the plan has states in a third
    one, these are in a file of the folder `far_disk`. With `keep_gradients` the optimizer updates
    in `step()`, and gradients are on the device until then, as where the plan was made with it.

    Raises ArtifactError where the folder holds no such package, or one for another model or
    optimiser, or where the other memory has no room, ConfigError where `disk` is no folder's path.
    """
    check_folder("load_whole", disk)
    check_folder("load_whole", far_disk, "far_disk")
    memories = Memories(disk, None if far_disk is None else str(far_disk))
    return _load(package, memories, keep_gradients, otherwise, model, optimizer)


def _load(
    package: Path | str,
    memories: Memories,
    keep_gradients: bool,
    otherwise: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> tuple[nn.Module, Any]:
    """The module and the optimizer of a package."""
    from tightfit.stages.validate.load import load_lodged

    planned, made = load_lodged(package, model, optimizer, *memories.folders, otherwise=otherwise)
    made.keep_gradients = keep_gradients
    return planned, made


def _task(
    graph: Path,
    costs: Path,
    updating: Updating,
    memories: Memories,
    microbatches: int,
) -> Task:
    """The task without a bound on what the device has."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph import read_graph
    from tightfit.schemas.measured_updates import MeasuredUpdates
    from tightfit.stages.combine.whole.backward import costs_by_value
    from tightfit.stages.combine.whole.task import task_of
    from tightfit.stages.device.optimiser import PIECE_BYTES

    traced, paid = read_graph(graph), read_costs(costs)
    task = task_of(
        traced,
        paid,
        _link(updating, traced.device, memories),
        costs_by_value(traced, updating.costs),
        LARGEST,
        SMALL,
        microbatches,
        measured=MeasuredUpdates(updating.optimizer, PIECE_BYTES, updating.costs, updating.spare),
    )
    if not task.remote:
        raise _none_away()
    return replace(task, accumulating=updating.gradients.stay)


def _check_sizes(graph: Path) -> None:
    """Raises ConfigError where no parameter is large enough to live in another memory, ahead of all
    measurements."""
    from tightfit.schemas.graph import read_graph
    from tightfit.stages.combine.whole.task import remote_of

    if not remote_of(read_graph(graph), SMALL, moves=True):
        raise _none_away()


def _none_away() -> ConfigError:
    return ConfigError(
        f'plan: parameters="away": none has {SMALL} bytes or more for itself, and smaller ones '
        "stay on the device: leave it out"
    )


def _link(updating: Updating, device: str, memories: Memories) -> HostLink:
    """The link, as it was measured, with the room that the other memory has now, or as much of it
    as was said."""
    from tightfit.stages.device.disk import folder_of

    own = updating.link(device)
    free = free_bytes(folder_of(memories.disk), "disk") if own.to == "disk" else math.inf
    return replace(own, room=free if memories.room is None else min(free, memories.room))


def _beyond(route: Route, link: HostLink, memories: Memories) -> HostLink | None:
    """The link to a third memory, where there is one, with the room that it has now."""
    from tightfit.schemas.link import HostLink
    from tightfit.stages.profile.kept_links import kept_far_link

    if memories.far is None:
        return None
    far = kept_far_link(route.store, route.device, memories.disk, memories.far)
    each, room = min(far.speed.both), free_bytes(memories.far, "far_disk")
    return HostLink(each, far.speed.latency, False, room, link.to, link.room, far.memory)


def _whole(task: Task, found: Found, updating: Updating, schedule: str) -> WholeStep:
    """What is predicted of the step."""
    from tightfit.stages.combine.fixed import fixed_bytes
    from tightfit.stages.combine.whole.accumulating import accumulating
    from tightfit.stages.generate.remote import away_of
    from tightfit.stages.generate.whole import copies_bytes, peaks
    from tightfit.stages.replay.referee import replay

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
    resident = sum(updates.costs[value].states for value in updates.on_device)
    far, slow = updates.far, updating.slow - resident
    if far is not None:
        slow += far.staging(updates.costs) - far.states(updates.costs)
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
        slow=slow + own + copies + sums,
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
        gradients=adds.gradients if adds else task.sums,
        opening_peak=adds.opening - there if adds else 0,
        adding_peak=adds.adding - there if adds else 0,
        accumulating_total=alone + adds.most if adds else 0,
        far_memory="" if far is None else far.link.to,
        far=0 if far is None else far.states(updates.costs),
        resident=resident,
    )


def _digest(updates: Updates, written: str, memories: Memories) -> str:
    far = updates.far
    if far is not None:
        # The free bytes of disks change all the time.
        link = replace(far.link, room=math.inf, memory=math.inf)
        updates = replace(updates, far=replace(far, link=link))
    asked = written if memories.room is None else f"{written} {memories.room}"
    return hashlib.sha256(f"{asked} {updates.text()}".encode()).hexdigest()[:32]


def _digest_of(graph: Path) -> str:
    from tightfit.schemas.store import header

    return header(graph).digest


def _no_frontier() -> Frontier:
    raise ConfigError("a plan whose parameters live in another memory is made for one budget")
