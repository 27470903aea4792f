"""The gradients in a captured joint graph: their parts, and where their operators come from."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx import traceback as fx_traceback

aten = torch.ops.aten

_GRADIENT_SUM_MARK = getattr(fx_traceback, "GRADIENT_ACC_SPECIAL_STACK", "Gradient addition node")
"""What AOTAutograd writes beside the sums that autograd makes of gradients that meet."""


def is_gradient_sum(node: fx.Node) -> bool:
    """True for a sum that autograd makes of two gradients that meet."""
    plain = node.target is aten.add.Tensor and not node.kwargs
    return (
        plain
        and _GRADIENT_SUM_MARK in (node.stack_trace or "")
        and all(isinstance(part, fx.Node) for part in node.args[:2])
    )


def partial_gradients(gradient: fx.Node) -> list[fx.Node]:
    """What autograd adds up to a gradient, in its order: what is made first arrives first, and is
    the left or the right one of a sum, as either can be overwritten."""
    if not is_gradient_sum(gradient) or len(gradient.users) != 1:
        return [gradient]
    earlier, last = sorted(gradient.args[:2])  # type: ignore[type-var]
    return [*partial_gradients(earlier), last]  # type: ignore[arg-type, list-item]


def annotate_backward(graph: fx.GraphModule) -> None:
    """Gives the backward's nodes the module and the source line of their forward."""
    forward: dict[Any, fx.Node] = {}
    for node in graph.graph.nodes:
        number = node.meta.get("seq_nr")
        made_by = node if number is None else forward.setdefault(number, node)
        if is_gradient_sum(node):
            made_by = node.args[0]
        if made_by is not node and "nn_module_stack" not in node.meta:
            node.meta["nn_module_stack"] = made_by.meta.get("nn_module_stack", {})
            node.meta["stack_trace"] = made_by.meta.get("stack_trace", "")
