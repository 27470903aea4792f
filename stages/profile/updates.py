"""Measures the updates of parameters, piece by piece as they are done in the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from schemas.graph import Graph
from schemas.measured_updates import MeasuredUpdates
from schemas.updates import UpdateCost
from stages.device.meter import measure, time_calls
from stages.device.optimiser import PIECE_BYTES
from stages.device.slow import Ticket
from stages.device.updating import Updates

_CACHES = 32 << 20
"""Bytes that caches of a CPU do not have beside what they are filled with."""


class _Nowhere:
    """A slow memory without bytes, whose transfers take no time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sound = True

    def write(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        return Ticket(None, tensor)

    def read(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        return Ticket(None, tensor)

    def wait(self, ticket: Ticket) -> None:
        ticket.tensor = None

    def now(self) -> float:
        return 0.0

    def passed(self, ticket: Ticket) -> tuple[float, float]:
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
) -> dict[str, UpdateCost]:
    """The cost of the update of each parameter by its path, in the order of the groups.

    Parameters of one group, size and dtype are measured once, each on numbers of its own; a
    parameter of no path is left out.
    """
    known: dict[tuple[Any, ...], UpdateCost] = {}
    found: dict[str, UpdateCost] = {}
    parameters = [(place, p) for place, group in enumerate(groups) for p in group["params"]]
    for path, (place, parameter) in zip(paths, parameters, strict=True):
        if not path or not parameter.requires_grad:
            continue
        key = (place, parameter.numel(), parameter.dtype)
        if key not in known:
            known[key] = _measured(kind, groups[place], parameter, piece_bytes)
        found[path] = replace(known[key], path=path)
    return found


def measured_of(graph: Graph, name: str, device: torch.device) -> MeasuredUpdates:
    """What the updates of all parameters with a gradient take, by an optimiser of `torch.optim` in
    its usual settings; "momentum" is SGD with momentum."""
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
    settings = {"momentum": 0.9} if name == "momentum" else {}
    groups = kind(parameters, lr=1e-3, **settings).param_groups
    costs = measure_updates(kind, groups, [value.path for value in trained], PIECE_BYTES)
    return MeasuredUpdates(kind.__name__, PIECE_BYTES, costs)


def _forgetting(device: torch.device) -> Callable[[], None] | None:
    """What leaves a CPU's caches without the parameter and its states, which come from elsewhere in
    a step."""
    if device.type != "cpu":
        return None
    large = torch.zeros(_CACHES, dtype=torch.uint8)

    def forget() -> None:
        large.add_(1)

    return forget


def _measured(
    kind: type[torch.optim.Optimizer],
    group: dict[str, Any],
    like: torch.Tensor,
    piece_bytes: int,
) -> UpdateCost:
    """The cost of one update."""
    device = like.device
    parameter = torch.zeros(like.numel(), dtype=like.dtype, device=device)
    gradient = torch.ones_like(parameter)
    own = {**group, "params": [parameter]}
    updates = Updates(kind, [own], None, piece_bytes, _Nowhere)

    def update() -> None:
        parameter.grad = gradient
        updates.update(0, own)

    first, _ = measure(device, update)
    update()
    steady, _ = measure(device, update)
    timing = time_calls(device, update, before=_forgetting(device), most=7)
    pieces = tuple(piece.size for piece in updates.pieces[0])
    return UpdateCost("", pieces, timing.median, steady.peak, steady.net, (first.peak, first.net))
