"""Which inputs may come with other gaps between their elements, as slices do, or be copied."""

from __future__ import annotations

import torch

from tightfit.schemas.graph import NONE, Graph, Op, Value
from tightfit.stages.device.operators import resolve
from tightfit.stages.generate.check import guards_in
from tightfit.stages.generate.runtime.strides import in_order

_LOOKING_UP = frozenset(
    f"aten.{name}"
    for name in (
        *("embedding.default", "embedding_dense_backward.default", "index.Tensor"),
        *("index_select.default", "gather.default", "nll_loss_forward.default"),
        *("nll_loss_backward.default", "nll_loss2d_forward.default"),
        *("nll_loss2d_backward.default", "_to_copy.default"),
    )
)
"""Operators to whose results it is nothing how their indices lie in memory."""


def spaced(graph: Graph) -> list[int]:
    """The inputs of integers or booleans of which the step computes the same, bit for bit, from a
    copy of what came with other gaps, its dimensions in the same order.

    Sums of integers are exact, and elementwise operators lay out what they make of such an input
    in one way. Inputs that are returned or written are eager's own, and a forward that asks
    how a tensor lies in memory may ask it of them.
    """
    if guards_in(graph).get("asks_layout") is not False:
        return []
    return [
        at
        for at in copied(graph)
        if _is_exact(value := graph.values[at])
        and in_order(value.shape, value.strides)
        and all(_is_deaf(graph, op) for op in graph.ops if _reads(graph, op, value.storage))
    ]


def copied(graph: Graph) -> list[int]:
    """The inputs in whose place the step may be given a copy: those neither returned, as they are
    or as a view, nor written."""
    shown = {graph.values[out.value].storage for out in graph.outputs if out.value != NONE}
    written = {graph.values[value].storage for op in graph.ops for value in op.writes}
    return [
        value.id
        for value in graph.values
        if value.kind == "input" and value.storage not in shown | written
    ]


def _reads(graph: Graph, op: Op, storage: int) -> bool:
    return any(graph.values[value].storage == storage for value in op.inputs)


def _is_deaf(graph: Graph, op: Op) -> bool:
    """Whether an operator makes the same of integers whatever the gaps between them."""
    if graph.is_view(op) or op.target in _LOOKING_UP:
        return True
    if all(_is_exact(graph.values[value]) for value in op.outputs if value != NONE):
        return True
    return torch.Tag.pointwise in resolve(op.target).tags


def _is_exact(value: Value) -> bool:
    dtype = getattr(torch, value.dtype)
    return not (dtype.is_floating_point or dtype.is_complex)
