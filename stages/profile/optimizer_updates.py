"""Measures the updates of parameters, piece by piece as they are done in the backward: on the
device, and in the offload target, by a thread beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.optimizer_plan import OptimizerCosts, ParameterUpdateCost
from tightfit.stages.runtime.offload.backward_optimizer import PIECE_BYTES
from tightfit.stages.runtime.offload.host_target import create_offload_target
from tightfit.stages.runtime.offload.host_update import CHUNK_BYTES, UpdateWorkspace
from tightfit.stages.runtime.offload.piecewise_optimizer import PiecewiseOptimizer, group_settings
from tightfit.stages.runtime.offload.supported_optimizers import check_supported_optimizer
from tightfit.stages.runtime.offload.target import (
    OffloadTarget,
    TargetAccess,
    TargetSlice,
    TargetWork,
    TransferHandle,
)
from tightfit.stages.torch_utils.memory_meter import measure_call_memory, memory_session, time_calls
from tightfit.util.errors import ConfigError
from tightfit.util.processes import usable_cores

_CACHE_BYTES = 32 << 20
"""Bytes that caches of a CPU do not have beside what they are filled with."""


class _NullOffloadTarget:
    """An offload target without bytes, whose transfers take no time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.healthy = True
        self.failure = ""

    def write(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        return TransferHandle(None, tensor)

    def read(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        return TransferHandle(None, tensor)

    def beside(self, work: TargetWork, *after: TransferHandle) -> TransferHandle:
        return TransferHandle(None, None)

    def reach(self) -> TargetAccess:
        raise AssertionError("there are no bytes")

    def wait(self, ticket: TransferHandle) -> None:
        ticket.tensor = None

    def now(self) -> float:
        return 0.0

    def passed(self, ticket: TransferHandle) -> tuple[float, float]:
        return 0.0, 0.0

    def seconds(self, first: float, last: float) -> float:
        return last - first

    def idle(self) -> None:
        pass

    def close(self) -> None:
        pass


def measure_updates(
    kind: type[torch.optim.Optimizer],
    groups: Sequence[dict[str, Any]],
    paths: Sequence[str],
    piece_bytes: int,
    folder: str | None = None,
    beside: bool = True,
) -> dict[str, ParameterUpdateCost]:
    """The cost of the update of each parameter by its path, in the order of the groups.

    Parameters of one group, size and dtype are measured once, each on numbers of its own; a
    parameter of no path is left out. With `beside` they are also updated in the offload target, on
    the CPU in a file of the `folder`; raises RuntimeError, in one sentence, where that has no room.
    """
    known: dict[tuple[Any, ...], ParameterUpdateCost] = {}
    found: dict[str, ParameterUpdateCost] = {}
    parameters = [(place, p) for place, group in enumerate(groups) for p in group["params"]]
    for path, (place, parameter) in zip(paths, parameters, strict=True):
        if not path or not parameter.requires_grad:
            continue
        key = (place, parameter.numel(), parameter.dtype)
        if key not in known:
            cost = _measure_device_update(kind, groups[place], parameter, piece_bytes)
            if beside:
                cost = _add_host_update_cost(
                    cost, kind, groups[place], parameter, piece_bytes, folder
                )
            known[key] = cost
        found[path] = replace(known[key], path=path)
    return found


def measure_graph_updates(
    graph: Graph,
    name: str,
    device: torch.device,
    folder: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> OptimizerCosts:
    """What the updates of all parameters with a gradient take, by an optimizer of `torch.optim` in
    its usual settings but for some; "momentum" is SGD with momentum. See `measure_updates`.

    Raises ConfigError where there is no such optimizer, or it cannot step in the backward.
    """
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    kind = kinds.get(name, torch.optim.SGD)
    owners = dict.fromkeys(gradient.value for gradient in graph.gradients)
    found = [graph.values[value] for value in owners]
    trained = [value for value in found if value.kind == "parameter"]
    parameters = [
        torch.empty_strided(
            value.shape,
            value.strides,
            dtype=getattr(torch, value.dtype),
            device=device,
            requires_grad=True,
        )
        for value in trained
    ]
    own = dict(settings or {})
    usual = {"lr": 1e-3, **({"momentum": 0.9} if name == "momentum" else {})}
    try:
        optimizer = kind(parameters, **{**usual, **own})
        check_supported_optimizer(optimizer)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"--optimizer {name} {json.dumps(own)}: {error}") from error
    paths = [value.path for value in trained]
    costs = measure_updates(kind, optimizer.param_groups, paths, PIECE_BYTES, folder)
    return OptimizerCosts(kind.__name__, PIECE_BYTES, costs, has_spare_core(device), own)


def has_spare_core(device: torch.device) -> bool:
    """Whether a processor is left beside those that a device takes: on the CPU, beside PyTorch's
    threads."""
    return device.type != "cpu" or usable_cores() > torch.get_num_threads()


def _make_cpu_cache_flush(device: torch.device) -> Callable[[], None] | None:
    """What leaves a CPU's caches without the parameter and its states, which come from elsewhere in
    a step."""
    if device.type != "cpu":
        return None
    large = torch.zeros(_CACHE_BYTES, dtype=torch.uint8)

    def forget() -> None:
        large.add_(1)

    return forget


def _measure_device_update(
    kind: type[torch.optim.Optimizer],
    group: dict[str, Any],
    like: torch.Tensor,
    piece_bytes: int,
) -> ParameterUpdateCost:
    """The cost of one update."""
    device = like.device
    parameter = torch.zeros(like.numel(), dtype=like.dtype, device=device)
    gradient = torch.ones_like(parameter)
    own = {**group, "params": [parameter]}
    updates = PiecewiseOptimizer(kind, [own], None, piece_bytes, _NullOffloadTarget)

    def update() -> None:
        parameter.grad = gradient
        updates.update(0, own)

    first, _ = measure_call_memory(device, update)
    update()
    steady, _ = measure_call_memory(device, update)
    timing = time_calls(device, update, before=_make_cpu_cache_flush(device), most=7)
    pieces = tuple(piece.size for piece in updates.pieces[0])
    return ParameterUpdateCost(
        "", pieces, timing.median, steady.peak, steady.net, (first.peak, first.net)
    )


def _add_host_update_cost(
    cost: ParameterUpdateCost,
    kind: type[torch.optim.Optimizer],
    group: dict[str, Any],
    like: torch.Tensor,
    piece_bytes: int,
    folder: str | None,
) -> ParameterUpdateCost:
    """The cost with what an update takes in the offload target of the device, and what adding a
    gradient to a sum takes there."""
    if not like.numel():
        return replace(cost, host_seconds=0.0, add_seconds=0.0)
    own = {**group, "params": [torch.zeros(like.numel(), dtype=like.dtype)]}
    updates = PiecewiseOptimizer(kind, [own], None, piece_bytes, _NullOffloadTarget)
    size, states = like.numel() * like.element_size(), sum(p.size for p in updates.pieces[0])
    # What begins at a multiple of 64 is computed where it is, where a memory allows that.
    places = [-(-size // 64) * 64 * number for number in range(4)]
    memory = create_offload_target(like.device, places[3] + states, folder)
    workspace = UpdateWorkspace(
        updates, [0], TargetSlice(memory, places[3], states), True, CHUNK_BYTES
    )

    def update() -> None:
        _run_on_host(memory, workspace.update(0, group_settings(own), places[0], places[1], None))

    def add() -> None:
        _run_on_host(memory, workspace.add(0, places[1], places[2], first=False))

    try:
        # What the thread takes beside the workspace, in this one.
        with memory_session("cpu") as running, running.section("first"):
            reaching = memory.reach()
            workspace.update(0, group_settings(own), places[0], places[1], None)(reaching)
        updates.ring.stored.update(
            (piece, TransferHandle(None, None)) for piece in updates.pieces[0] if piece.size
        )
        with memory_session("cpu") as again, again.section("again"):
            workspace.update(0, group_settings(own), places[0], places[1], None)(reaching)
        peak = max(running.section_usage("first").peak, again.section_usage("again").peak)
        spent = [
            time_calls(
                "cpu", call, before=_make_cpu_cache_flush(torch.device("cpu")), most=7
            ).median
            for call in (update, add)
        ]
    finally:
        memory.close()
    return replace(cost, host_seconds=spent[0], add_seconds=spent[1], host_peak=peak)


def _run_on_host(memory: OffloadTarget, work: TargetWork) -> None:
    memory.wait(memory.beside(work))
