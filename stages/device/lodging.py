"""Moves parameters into a slow memory, with an optimiser that updates them in the backward."""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .far import BOUNCE, BUFFERS, FAR_DISK, Behind, FarStates, States
from .home import Home
from .lane import Lane
from .memories import slow_memory
from .optimiser import stepping as _stepping
from .pieces import pieces_of, states_of
from .ring import Passed
from .spans import Span
from .supported_optimizers import check
from .updating import STAGING, Updates


@dataclass(frozen=True)
class Lodging:
    """What a plan says of an optimiser whose parameters live in a slow memory, in part.

    `optimizer` is its class, `paths` are those of the parameters that live there, of which `there`
    are on the device between two steps, too (as places in `paths`), and `updated` those that a step
    updates. States are updated in pieces of `piece` bytes of a parameter, and pass through
    `staging` bytes of the device. In the slow memory parameters take `parameters` bytes, `states`
    the states of those that are updated, and `copies` what a step sends beside them.
    A step takes `peak` bytes of the device above what was there before, the first `first_peak`.
    Those `away` (as `there`) are updated in the slow memory; where that is a disk, this takes
    `bench` bytes of the device. Where a step is planned as several `microbatches`, each but the
    last one adds its gradients up, in `sums` bytes of the slow memory, and takes `adding_peak`
    bytes of the device, the first one of a step `first_adding_peak`. Of those `far`, updated in
    the slow memory, `far_states` bytes of states are on a disk behind it, and pass through
    `far_staging` bytes of it, which are among its `states`. The states of those that are
    `resident`, by path, stay on the device, and take `resident_states` bytes of it.
    """

    optimizer: str
    paths: tuple[str, ...]
    there: tuple[int, ...]
    updated: tuple[str, ...]
    piece: int
    staging: int
    parameters: int
    states: int
    copies: int
    peak: int
    first_peak: int
    away: tuple[int, ...] = ()
    bench: int = 0
    microbatches: int = 1
    sums: int = 0
    adding_peak: int = 0
    first_adding_peak: int = 0
    far: tuple[int, ...] = ()
    far_states: int = 0
    far_staging: int = 0
    resident: tuple[str, ...] = ()
    resident_states: int = 0


def lodge(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    lodging: Lodging,
    folder: str | os.PathLike[str] | None = None,
    far_folder: str | os.PathLike[str] | None = None,
) -> tuple[Home, Any]:
    """The home of a model's parameters and the optimiser that takes the place of another one.

    Raises RuntimeError, in one sentence, where the optimiser is another one than that of the plan,
    where parameters cannot live elsewhere, and where there is no room; all is then as it was.
    """
    if lodging.far and not far_folder:
        raise RuntimeError(
            f"the plan has states on a disk behind the memory of parameters: name its folder, "
            f"{FAR_DISK}"
        )
    check(optimizer)
    known = dict(model.named_parameters())
    missing = [path for path in lodging.paths if path not in known]
    if missing:
        raise RuntimeError(f"the plan moves the parameter {missing[0]}, which this model has not")
    apart = _numbers(known, optimizer, [lodging.paths[place] for place in lodging.far])
    resident = _numbers(known, optimizer, lodging.resident)
    near = _states_bytes(known, optimizer, lodging, apart, resident)
    parameters = [known[path] for path in lodging.paths]
    # What is computed where it is begins at a multiple of 64, whatever parameters take.
    sizes = (lodging.far_staging, near, lodging.parameters, lodging.copies, lodging.sums)
    if sum(p.numel() * p.element_size() for p in parameters) != lodging.parameters:
        raise RuntimeError("the plan was made for parameters of other sizes or dtypes")
    device = next(p.device for group in optimizer.param_groups for p in group["params"])
    memory = slow_memory(device, sum(sizes), folder)
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    _, beside, own, copies, sums = (Span(memory, b, s) for b, s in zip(begins, sizes, strict=True))
    home = None
    far: FarStates | None = None
    try:
        home = Home(parameters, lodging.paths, lodging.there, own, copies)
        passed: Passed = beside
        if lodging.far and far_folder:
            each = lodging.far_staging // BUFFERS
            size, bounce = lodging.far_states, min(BOUNCE, each)
            behind = Behind(memory, size, far_folder, near, bounce)
            far = FarStates(memory, behind, 0, each)
            passed = States(beside, far)
        kind, groups = type(optimizer), optimizer.param_groups
        updates = Updates(
            kind, groups, None, lodging.piece, lambda _: passed, home, apart, resident
        )
        updates.far = far
        stepping = _stepping(optimizer, updates)
        home.stepping = weakref.ref(stepping)
        if lodging.away:
            home.lane = updates.lane = _lane(home, updates, lodging, beside, sums)
        return home, stepping
    except BaseException:
        if home is not None:
            home.close()
        if far is not None:
            far.behind.close()
        memory.close()
        raise


def _lane(home: Home, updates: Updates, lodging: Lodging, states: Span, sums: Span) -> Lane:
    """What updates parameters where they live."""
    own = {id(parameter) for parameter in updates.parameters}
    for number in lodging.away:
        if id(home.parameters[number]) not in own:
            raise RuntimeError(f"{home.paths[number]} is in no group of the optimiser")
    if home.device.type != "cpu" and any(s.param_groups[0].get("fused") for s in updates.shadows):
        raise RuntimeError(
            "an optimiser with fused=True keeps its steps on the device, and parameters are "
            "updated in the host's memory: leave fused out"
        )
    lane = Lane(home, updates, lodging.away, states, sums)
    size = lane.bench.bytes + (0 if updates.far is None else updates.far.bytes)
    if home.device.type == "cpu" and size > lodging.bench:
        raise RuntimeError(
            f"updates on the disk pass through {size} bytes, in the plan "
            f"{lodging.bench}: plan again with the optimiser's settings"
        )
    return lane


def _numbers(
    known: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, paths: Sequence[str]
) -> frozenset[int]:
    """The numbers, in an optimiser, of the parameters of some paths; raises RuntimeError where one
    is not there."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    for path in paths:
        if id(known.get(path)) not in numbers:
            raise RuntimeError(f"{path} has a gradient, and is in no group of the optimiser")
    return frozenset(numbers[id(known[path])] for path in paths)


def _states_bytes(
    known: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    lodging: Lodging,
    apart: Collection[int],
    resident: Collection[int],
) -> int:
    """The bytes of the states that an optimiser has in the slow memory, without those of the
    numbers `apart` and `resident`; raises RuntimeError where it is not the plan's."""
    kind, groups = type(optimizer), optimizer.param_groups
    if kind.__name__ != lodging.optimizer:
        raise RuntimeError(
            f"the plan was made for {lodging.optimizer}, and the optimiser is {kind.__name__}"
        )
    parameters = [p for group in groups for p in group["params"]]
    counts = [states_of(kind, group) for group in groups for _ in group["params"]]
    pieces = pieces_of(parameters, counts, lodging.piece)
    sizes = {id(p): [each.size for each in own] for p, own in zip(parameters, pieces, strict=True)}
    for path in lodging.updated:
        if id(known.get(path)) not in sizes:
            raise RuntimeError(f"{path} has a gradient, and is in no group of the optimiser")
    far = [size for number in apart for size in sizes[id(parameters[number])]]
    through = BUFFERS * max(far, default=0)
    stay = [size for number in resident for size in sizes[id(parameters[number])]]
    elsewhere = sum(far) + sum(stay)
    found = sum(sum(sizes[id(known[path])]) for path in lodging.updated) - elsewhere + through
    staging = STAGING * max(size for own in sizes.values() for size in own)
    planned = (lodging.states, lodging.staging, lodging.far_states, lodging.far_staging)
    if (found, staging, sum(far), through, sum(stay)) != (*planned, lodging.resident_states):
        raise RuntimeError(
            f"the optimiser's states take {found} bytes and pass through {staging}, in the plan "
            f"{lodging.states} and {lodging.staging}: plan again with its settings"
        )
    return sum(map(sum, sizes.values())) - elsewhere
