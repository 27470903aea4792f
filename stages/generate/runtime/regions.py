"""Knows the region of autocast that a call runs in, and what autocast keeps there.

Within one region with its cache on, autocast casts a parameter once for all calls, and the
gradients of these calls add up before they are cast back. A step casts for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from .mismatch import PlanMismatch

_KEY = "tightfit"
_probes = threading.local()


class Region:
    """A call's part in a region: the tensors of which the region keeps casts."""

    def __init__(self, node: Any, tensors: Sequence[torch.Tensor]) -> None:
        self.node = node
        self.tensors = {id(tensor) for tensor in tensors}

    def enter_backward(self) -> None:
        """Raises RuntimeError in a backward that runs through another call of the region which
        cast the same tensors."""
        task = torch._C._current_graph_task_id()
        going = self.node.metadata[_KEY].setdefault("backward", {})
        if going.get("task") != task:
            going.clear()
            going.update(task=task, tensors=set())
        if not self.tensors.isdisjoint(going["tensors"]):
            raise RuntimeError(
                "one backward goes through several calls of a planned module in one autocast "
                "region, whose casts of the weights eager shares: give each call an autocast "
                "region of its own, or each loss its own backward"
            )
        going["tensors"] |= self.tensors


def region_of(device: torch.device, tensors: Sequence[torch.Tensor]) -> Region | None:
    """The region that a call runs in, None where it keeps no casts of the call.

    `tensors` are those that the call casts. Raises PlanMismatch where one has changed since an
    earlier call in the region, since eager would use it as it was then.
    """
    leaves = [tensor for tensor in tensors if tensor.is_leaf]
    if not leaves or not torch.is_autocast_enabled(device.type):
        return None
    if not torch.is_autocast_cache_enabled():
        return None
    node = _node(device)
    seen = node.metadata.setdefault(_KEY, {}).setdefault("versions", {})
    for tensor in leaves:
        _known, version = seen.setdefault(id(tensor), (tensor, tensor._version))
        if version != tensor._version:
            raise PlanMismatch(
                "a weight was changed inside the autocast region, where eager goes on with the "
                "cast that it made before: leave the region after each step"
            )
    return Region(node, leaves)


def _node(device: torch.device) -> Any:
    """The node of a cast that autocast keeps as long as the region: one object for each region."""
    probes: dict[torch.device, torch.Tensor] = vars(_probes).setdefault("of", {})
    if device not in probes:
        probes[device] = torch.empty(0, 0, device=device, requires_grad=True)
    probe = probes[device]
    multiplied: Any = torch.mm(probe, probe).grad_fn
    return multiplied.next_functions[0][0]
