"""Moves parameters into an offload target, with an optimizer that updates them in the backward."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..autograd_chain import StepProgram
from ..interface import Interface
from ..mismatch import PlanMismatch
from .backward_optimizer import make_backward_optimizer as _stepping
from .host_target import create_offload_target
from .host_update import HostUpdater
from .parameter_pieces import split_into_pieces, states_per_parameter
from .parameter_store import ParameterStore
from .piecewise_optimizer import STAGING_BUFFER_COUNT, PiecewiseOptimizer
from .second_tier import (
    BOUNCE_BYTES,
    SECOND_TIER_OPTION,
    TIER_BUFFERS,
    SecondTier,
    SecondTierStore,
    TieredStates,
)
from .staging import StateTarget
from .supported_optimizers import check_supported_optimizer
from .target import TargetSlice


@dataclass(frozen=True)
class OffloadSpec:
    """What a plan says of an optimizer whose parameters live in an offload target, in part.

    `optimizer` is its class, which was measured with `settings` besides its usual ones, `paths` are
    those of the parameters that live there, of which `resident` are on the device between two
    steps, too (as places in `paths`), and `updated` those that a step updates. States are updated
    in pieces of `piece_bytes` bytes of a parameter, and pass through `staging_bytes` bytes of the
    device. In the offload target parameters take `parameter_bytes` bytes, `state_bytes` the states
    of those that are updated, and `activation_bytes` what a step sends beside them. A step takes
    `peak` bytes of the device above what was there before, the first `first_peak`. Those
    `host_updated` (as `resident`) are updated in the offload target; where that is a disk, this
    takes `workspace_bytes` bytes of the device. Where a step is planned as several `microbatches`,
    each but the last one adds its gradients up, in `gradient_sum_bytes` bytes of the offload
    target, and takes `microbatch_peak` bytes of the device, the first one of a step
    `first_microbatch_peak`. Of those `second_tier`, updated in the offload target,
    `second_tier_bytes` bytes of states are on a disk behind it, and pass through
    `second_tier_staging_bytes` bytes of it, which are among its `state_bytes`. The states of those
    that are `device_states`, by path, stay on the device, and take `device_state_bytes` bytes of
    it."""

    optimizer: str
    paths: tuple[str, ...]
    resident: tuple[int, ...]
    updated: tuple[str, ...]
    piece_bytes: int
    staging_bytes: int
    parameter_bytes: int
    state_bytes: int
    activation_bytes: int
    peak: int
    first_peak: int
    host_updated: tuple[int, ...] = ()
    workspace_bytes: int = 0
    microbatches: int = 1
    gradient_sum_bytes: int = 0
    microbatch_peak: int = 0
    first_microbatch_peak: int = 0
    second_tier: tuple[int, ...] = ()
    second_tier_bytes: int = 0
    second_tier_staging_bytes: int = 0
    device_states: tuple[str, ...] = ()
    device_state_bytes: int = 0
    settings: dict[str, Any] = field(default_factory=dict)


def offload_parameters(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    spec: OffloadSpec,
    folder: str | os.PathLike[str] | None = None,
    second_disk: str | os.PathLike[str] | None = None,
) -> tuple[ParameterStore, Any]:
    """The store of a model's parameters and the optimizer that takes the place of another one.

    Raises RuntimeError, in one sentence, where the optimizer is another one than that of the plan,
    where parameters cannot live elsewhere, and where there is no room; all is then as it was.
    """
    if spec.second_tier and not second_disk:
        raise RuntimeError(
            f"the plan has states on a disk behind the memory of parameters: name its folder, "
            f"{SECOND_TIER_OPTION}"
        )
    check_supported_optimizer(optimizer)
    known = dict(model.named_parameters())
    missing = [path for path in spec.paths if path not in known]
    if missing:
        raise RuntimeError(f"the plan moves the parameter {missing[0]}, which this model has not")
    apart = _parameter_numbers(known, optimizer, [spec.paths[place] for place in spec.second_tier])
    resident = _parameter_numbers(known, optimizer, spec.device_states)
    near = _offloaded_state_bytes(known, optimizer, spec, apart, resident)
    parameters = [known[path] for path in spec.paths]
    # What is computed where it is begins at a multiple of 64, whatever parameters take.
    sizes = (
        spec.second_tier_staging_bytes,
        near,
        spec.parameter_bytes,
        spec.activation_bytes,
        spec.gradient_sum_bytes,
    )
    if sum(p.numel() * p.element_size() for p in parameters) != spec.parameter_bytes:
        raise RuntimeError("the plan was made for parameters of other sizes or dtypes")
    device = next(p.device for group in optimizer.param_groups for p in group["params"])
    memory = create_offload_target(device, sum(sizes), folder)
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    _, beside, own, copies, sums = (
        TargetSlice(memory, b, s) for b, s in zip(begins, sizes, strict=True)
    )
    store = None
    far: SecondTierStore | None = None
    try:
        store = ParameterStore(parameters, spec.paths, spec.resident, own, copies, device)
        passed: StateTarget = beside
        if spec.second_tier and second_disk:
            each = spec.second_tier_staging_bytes // TIER_BUFFERS
            size, bounce = spec.second_tier_bytes, min(BOUNCE_BYTES, each)
            behind = SecondTier(memory, size, second_disk, near, bounce)
            far = SecondTierStore(memory, behind, 0, each)
            passed = TieredStates(beside, far)
        kind, groups = type(optimizer), optimizer.param_groups
        updates = PiecewiseOptimizer(
            kind, groups, None, spec.piece_bytes, lambda _: passed, store, apart, resident
        )
        updates.far = far
        stepping = _stepping(optimizer, updates)
        store.stepping = weakref.ref(stepping)
        if spec.host_updated:
            store.host_updater = updates.host_updater = _make_host_updater(
                store, updates, spec, beside, sums
            )
        return store, stepping
    except BaseException:
        if store is not None:
            store.close()
        if far is not None:
            far.behind.close()
        memory.close()
        raise


def _make_host_updater(
    store: ParameterStore,
    updates: PiecewiseOptimizer,
    spec: OffloadSpec,
    states: TargetSlice,
    sums: TargetSlice,
) -> HostUpdater:
    """What updates parameters where they live."""
    own = {id(parameter) for parameter in updates.parameters}
    for number in spec.host_updated:
        if id(store.parameters[number]) not in own:
            raise RuntimeError(f"{store.paths[number]} is in no group of the optimizer")
    if store.device.type != "cpu" and any(
        s.param_groups[0].get("fused") for s in updates.shadow_optimizers
    ):
        raise RuntimeError(
            "an optimizer with fused=True keeps its steps on the device, and parameters are "
            "updated in the host's memory: leave fused out"
        )
    updater = HostUpdater(store, updates, spec.host_updated, states, sums)
    size = updater.workspace.bytes + (0 if updates.far is None else updates.far.bytes)
    if store.device.type == "cpu" and size > spec.workspace_bytes:
        raise RuntimeError(
            f"updates on the disk pass through {size} bytes, in the plan "
            f"{spec.workspace_bytes}: plan again with the optimizer's settings"
        )
    return updater


def _parameter_numbers(
    known: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, paths: Sequence[str]
) -> frozenset[int]:
    """The numbers, in an optimizer, of the parameters of some paths; raises RuntimeError where one
    is not there."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    for path in paths:
        if id(known.get(path)) not in numbers:
            raise RuntimeError(f"{path} has a gradient, and is in no group of the optimizer")
    return frozenset(numbers[id(known[path])] for path in paths)


def _offloaded_state_bytes(
    known: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    spec: OffloadSpec,
    apart: Collection[int],
    resident: Collection[int],
) -> int:
    """The bytes of the states that an optimizer has in the offload target, without those of the
    numbers `apart` and `resident`; raises RuntimeError where it is not the plan's."""
    kind, groups = type(optimizer), optimizer.param_groups
    if kind.__name__ != spec.optimizer:
        raise RuntimeError(
            f"the plan was made for {spec.optimizer}, and the optimizer is {kind.__name__}"
        )
    parameters = [p for group in groups for p in group["params"]]
    counts = [states_per_parameter(kind, group) for group in groups for _ in group["params"]]
    pieces = split_into_pieces(parameters, counts, spec.piece_bytes)
    sizes = {id(p): [each.size for each in own] for p, own in zip(parameters, pieces, strict=True)}
    for path in spec.updated:
        if id(known.get(path)) not in sizes:
            raise RuntimeError(f"{path} has a gradient, and is in no group of the optimizer")
    far = [size for number in apart for size in sizes[id(parameters[number])]]
    through = TIER_BUFFERS * max(far, default=0)
    stay = [size for number in resident for size in sizes[id(parameters[number])]]
    elsewhere = sum(far) + sum(stay)
    found = sum(sum(sizes[id(known[path])]) for path in spec.updated) - elsewhere + through
    staging = STAGING_BUFFER_COUNT * max(size for own in sizes.values() for size in own)
    planned = (
        spec.state_bytes,
        spec.staging_bytes,
        spec.second_tier_bytes,
        spec.second_tier_staging_bytes,
    )
    if (found, staging, sum(far), through, sum(stay)) != (*planned, spec.device_state_bytes):
        raise RuntimeError(
            f"the optimizer's states take {found} bytes and pass through {staging}, in the plan "
            f"{spec.state_bytes} and {spec.staging_bytes}: plan again with its settings"
        )
    return sum(map(sum, sizes.values())) - elsewhere


@dataclass(frozen=True)
class OffloadedModule:
    """The store of such parameters, and the `positions` of these among the tensors of a call; of
    several microbatches each but the last one runs the step `microbatch`, with its facts."""

    store: ParameterStore
    positions: tuple[int, ...]
    microbatch: tuple[StepProgram, Interface] | None = None

    def program(self, step: StepProgram, interface: Interface) -> tuple[StepProgram, Interface]:
        """What a call runs, and its facts."""
        store = self.store
        optimizer = store.optimizer
        if self.microbatch is not None and optimizer is not None and optimizer.adding:
            step, interface = self.microbatch
        return functools.partial(step, store), interface

    def plain(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of a call without these parameters; raises PlanMismatch where another one is
        in the place of such a parameter."""
        store = self.store
        for number, position in enumerate(self.positions):
            if tensors[position] is not store.parameters[number]:
                raise PlanMismatch(
                    f"{store.paths[number]} is another object than when its values were moved to "
                    f"an offload target; undo it, or load the plan again"
                )
        remote = set(self.positions)
        return [tensor for position, tensor in enumerate(tensors) if position not in remote]

    def members(self, base: type) -> dict[str, Any]:
        """The methods of such a module, of a class derived from `base`."""
        store = self.store
        own: Any = base

        def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
            """As that of the model, with copies of all tensors, those that stay on the device
            among them, until the optimizer is closed: what was saved is of one step, whatever is
            trained later."""
            with store.states():
                found = own.state_dict(self, *args, **kwargs)
            own_ones = kwargs.get("keep_vars") or store.left
            return found if own_ones else _copy_resident_tensors(found, self, store)

        def load_state_dict(
            self: Any, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
        ) -> Any:
            """As that of the model; a parameter goes to where it lives."""
            if assign and not store.left:
                raise RuntimeError(
                    "load_state_dict(assign=True) would replace parameters that live in another "
                    "memory: leave assign out"
                )
            with store.states():
                return own.load_state_dict(self, state_dict, strict, assign)

        def gathered(self: Any) -> contextlib.AbstractContextManager[None]:
            """Within it all parameters are on the device; see the optimizer's `gathered`."""
            return store.gathered()

        return {"state_dict": state_dict, "load_state_dict": load_state_dict, "gathered": gathered}


def _copy_resident_tensors(found: Any, module: torch.nn.Module, store: ParameterStore) -> Any:
    """A `state_dict` with copies in place of what the module has on the device."""
    own = (
        each for each in (*module.parameters(), *module.buffers()) if type(each) is not store.kind
    )
    shown = {each.untyped_storage().data_ptr() for each in own}
    for name, value in found.items():
        if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in shown:
            found[name] = value.clone()
    return found
