"""Inputs whose strides do not matter: eager gives the same bits and strides for any of them.

Such an input holds integers or flags that nobody writes, returns or differentiates. What is made
of it by views and by exact operators may lie in memory as it likes, up to operators whose results
do not hang on how it lies: rows of an embedding, classes of a loss.
"""

from __future__ import annotations

import json

from schemas.graph import LOSS_TARGET, NONE, Graph, Op, Value
from stages.generate.check import guards_in

_READS_IN_ORDER = {
    "aten.constant_pad_nd.default": 0,
    "aten.embedding.default": 1,
    "aten.embedding_dense_backward.default": 1,
    "aten.nll_loss_forward.default": 1,
    "aten.nll_loss_backward.default": 2,
    "aten.nll_loss2d_forward.default": 1,
    "aten.nll_loss2d_backward.default": 2,
}
"""Operators with the argument that they read element by element in the order of its shape."""

_VIEWS = (
    *("unsqueeze", "squeeze", "slice", "select", "expand", "permute", "transpose", "t", "alias"),
    "detach",
)
"""Views of any layout."""

_EXACT = (
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or"),
    *("logical_xor", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "add", "sub"),
    *("mul", "neg", "where", "masked_fill", "_to_copy", "clone", "minimum", "maximum", "clamp"),
)
"""Operators that give the same integers element by element wherever they lie."""


def loose_inputs(graph: Graph) -> list[int]:
    """The inputs that may come in any strides."""
    guards = guards_in(graph)
    if guards.get("layout_asked", True):
        return []
    may_flatten = guards.get("flattened_by_view", True) is False
    inputs = {value.id for value in graph.values if value.kind == "input"}
    storages = [graph.values[value].storage for value in inputs]
    return sorted(
        value
        for value in inputs
        if storages.count(graph.values[value].storage) == 1
        and _is_loose(graph, graph.values[value], may_flatten)
    )


def _is_loose(graph: Graph, given: Value, may_flatten: bool) -> bool:
    if given.requires_grad or not _is_whole(given):
        return False
    loose = {given.id}
    for op in graph.ops:
        used = loose.intersection(op.inputs)
        if not used or _in_order(graph, op, used):
            continue
        outputs = [graph.values[value] for value in op.outputs if value != NONE]
        if op.target == LOSS_TARGET or op.writes or not all(map(_is_whole, outputs)):
            return False
        if not _follows(graph, op, outputs, may_flatten):
            return False
        loose.update(value.id for value in outputs)
    held = {output.value for output in graph.outputs} | {made.gradient for made in graph.gradients}
    storages = {graph.values[value].storage for value in held if value != NONE}
    return storages.isdisjoint(graph.values[value].storage for value in loose)


def _is_whole(value: Value) -> bool:
    return value.dtype == "bool" or value.dtype.startswith(("int", "uint"))


def _in_order(graph: Graph, op: Op, used: set[int]) -> bool:
    """Whether an operator reads these values only where their layout does not matter: padding
    keeps one of four dimensions that has the channels last."""
    position = _READS_IN_ORDER.get(op.target)
    if position is None or any(len(graph.values[value].shape) > 3 for value in used):
        return False
    arguments = json.loads(op.arguments)["args"]
    others = [*arguments[:position], *arguments[position + 1 :]]
    return not any({"value": value} in others for value in used)


def _follows(graph: Graph, op: Op, outputs: list[Value], may_flatten: bool) -> bool:
    """Whether an operator gives the same elements, whatever the layout of what it reads."""
    space, name, *_ = op.target.split(".")
    if space != "aten":
        return False
    if name in ("view", "_unsafe_view"):
        return may_flatten or _sides(graph.values[op.inputs[0]]) == _sides(outputs[0])
    return name in _VIEWS or name in _EXACT


def _sides(value: Value) -> list[int]:
    return [size for size in value.shape if size != 1]
