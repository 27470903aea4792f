"""Which gradients of outputs the step can take in other strides than it was traced with.

The backward of eager runs on a gradient as it arrives. What the step makes of it is the same, bit
for bit, where it runs the same operators on the same strides, or where these do not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.schemas.actions import Compute, Write
from tightfit.schemas.arguments import decode_arguments
from tightfit.schemas.graph import LOSS_TARGET, NONE, Graph, Op, Value
from tightfit.schemas.schedule import Step
from tightfit.stages.device.operators import decode, resolve
from tightfit.stages.generate.check import guards_in

AS_IT_IS, LAID_OUT, REFUSED = "as it is", "laid out", "refused"

VIEW, RESHAPE = "aten.view.default", "aten.reshape.default"
"""A view in a trace of the backward, and what autograd does there: it copies where it must."""

JOIN = "aten.cat.default"
_UNSAFE_VIEW = "aten._unsafe_view.default"

ENDING = frozenset(
    f"aten.{name}"
    for name in (
        *("mm.default", "addmm.default", "bmm.default", "sum.default", "sum.dim_IntList"),
        *("convolution_backward.default", "native_layer_norm_backward.default"),
        *("native_batch_norm_backward.default", "embedding_dense_backward.default"),
        *("_softmax_backward_data.default", "_log_softmax_backward_data.default"),
        *("select_backward.default", "slice_backward.default"),
    )
)
"""Operators that lay out their results alike whatever the strides of a gradient."""

_DEAF = frozenset(
    f"aten.{name}"
    for name in (
        *("native_layer_norm_backward.default", "native_group_norm_backward.default"),
        *("_softmax_backward_data.default", "_log_softmax_backward_data.default"),
        *("embedding_dense_backward.default", "select_backward.default", "slice_backward.default"),
        "mkldnn_rnn_layer_backward.default",
    )
)
"""Operators to which, or to whose formula in autograd, the strides of a gradient are nothing: they
begin with a contiguous copy, or copy it elsewhere."""

_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("t.default", "transpose.int", "permute.default", "unsqueeze.default", "alias.default"),
        *("squeeze.default", "squeeze.dim", "squeeze.dims", "expand.default", "detach.default"),
        *("select.int", "slice.Tensor"),
    )
)
_FREE_VIEWS = _VIEWS | {_UNSAFE_VIEW}
_ORDERED = frozenset(
    f"aten.{name}"
    for name in (
        *("threshold_backward.default", "leaky_relu_backward.default"),
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"),
    )
)
"""Elementwise operators that lay out their result as their first operands are: with a gradient
further back its strides can be nothing to them. The kernels of these operators for tensors without
memory say so."""

_COPIES = ("aten.clone.default", "aten._to_copy.default")
_MOST_DIMENSIONS = 5


@dataclass(frozen=True)
class Layouts:
    """How the step takes each tangent that arrives in other strides: as it is, laid out anew, or
    not. `loose` are the sums of gradients whose result may have the strides of the one operand that
    is there. `reshaped` are the views of the backward that may then have to copy, and the copies
    for a view that may then not be due."""

    taken: dict[int, str]
    loose: frozenset[int]
    reshaped: frozenset[int]

    def arriving(self, graph: Graph) -> set[int]:
        """The storages of the gradients of outputs, and those that may be as one of them lies, or
        in its memory."""
        made = [graph.op(op).outputs[0] for op in self.loose | self.reshaped]
        return {graph.values[value].storage for value in [*self.taken, *made] if value != NONE}


def layouts(graph: Graph, steps: Sequence[Step], joined: Iterable[int]) -> Layouts:
    """Finds how the step of a schedule takes the tangents; `joined` are the ops in which gradients
    meet of which some may be absent."""
    loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
    if guards_in(graph).get("plain_backward") is not True:
        # Python in the backward may ask for a layout, which a trace does not show.
        return Layouts(dict.fromkeys(loss.outputs, REFUSED), frozenset(), frozenset())
    runs = [step.action for step in steps if isinstance(step.action, Compute | Write)]
    in_place = {run.op: run.in_place for run in runs if run.in_place != NONE}
    taken, loose, reshaped = {}, set(), set()
    for op in (graph.ops[index] for index in joined):
        views = _views_on_the_way(graph, op.outputs[0], in_place)
        if views is not None:
            loose.add(op.id)
            reshaped |= views
    for tangent in loss.outputs:
        views = _views_on_the_way(graph, tangent, in_place)
        if views is not None:
            taken[tangent] = AS_IT_IS
            reshaped |= views
        else:
            taken[tangent] = LAID_OUT if _is_ignored(graph, tangent) else REFUSED
    return Layouts(taken, frozenset(loose), frozenset(reshaped))


def _views_on_the_way(graph: Graph, tangent: int, in_place: dict[int, int]) -> set[int] | None:
    """The views from a tangent to where its strides no longer matter; None where the step would
    do something else there than eager."""
    reached, views = {tangent}, set()
    for op in graph.ops:
        if reached.isdisjoint(op.inputs) or op.target == LOSS_TARGET:
            continue
        if in_place.get(op.id, NONE) in reached:
            return None
        if op.target in ENDING or _is_joined(graph, op) or _gives_one_layout(graph, op, reached):
            continue
        if _is_contiguous_copy(op) and _only_joined(graph, op.outputs[0]):
            continue
        if op.target == VIEW or _is_for_view(graph, op):
            views.add(op.id)
        elif op.target not in _FREE_VIEWS and (op.id in in_place or not _follows_operands(op)):
            return None
        reached.update(op.outputs)
    return views


def _is_joined(graph: Graph, op: Op) -> bool:
    """Whether an op copies tensors into one that is contiguous, as `cat` does where no layout with
    the channels last is known."""
    return op.target == JOIN and len(graph.values[op.outputs[0]].shape) not in (4, 5)


def _is_contiguous_copy(op: Op) -> bool:
    """Whether an op is the copy of a reshape: with other strides eager may have done without."""
    given = decode_arguments(op.arguments)[1].get("memory_format")
    return op.target == _COPIES[0] and given == {"memory_format": "contiguous_format"}


def _is_for_view(graph: Graph, op: Op) -> bool:
    """Whether an op is the copy of a reshape, for views of one shape and nothing else."""
    return _is_contiguous_copy(op) and view_shape(graph, op) is not None


def view_shape(graph: Graph, op: Op) -> list[int] | None:
    """The shape in which alone a copy is read, by views; None where there is no such."""
    made = op.outputs[0]
    readers = [other for other in graph.ops if made in other.inputs]
    shapes = {tuple(graph.values[reader.outputs[0]].shape) for reader in readers}
    given_away = any(gradient.gradient == made for gradient in graph.gradients)
    if given_away or len(shapes) != 1 or any(one.target != _UNSAFE_VIEW for one in readers):
        return None
    return list(shapes.pop())


def _only_joined(graph: Graph, value: int) -> bool:
    """Whether all that reads a value, or a view of it, copies it into another tensor."""
    if any(gradient.gradient == value for gradient in graph.gradients):
        return False
    return all(
        _is_joined(graph, op)
        or (
            (op.target in _VIEWS or op.target in (VIEW, _UNSAFE_VIEW))
            and _only_joined(graph, op.outputs[0])
        )
        for op in graph.ops
        if value in op.inputs
    )


def _follows_operands(op: Op) -> bool:
    """Whether an operator gives a result laid out as its operands are."""
    if op.target in _COPIES:
        return "memory_format" not in decode_arguments(op.arguments)[1]
    return torch.Tag.pointwise in resolve(op.target).tags


def _is_ignored(graph: Graph, tangent: int) -> bool:
    """Whether the strides of a tangent are nothing to all that reads it or a view of it."""
    return all(
        op.target in _DEAF
        or _gives_one_layout(graph, op, {tangent})
        or (op.target in _VIEWS and _is_ignored(graph, op.outputs[0]))
        for op in graph.ops
        if tangent in op.inputs
    )


def _gives_one_layout(graph: Graph, op: Op, reached: set[int]) -> bool:
    """Whether an elementwise operator gives a result in the planned strides whatever the order of
    the dimensions of those `reached`."""
    moved = [graph.values[value] for value in op.inputs if value in reached]
    dimensions = {len(value.shape) for value in moved}
    if op.target not in _ORDERED or len(dimensions) > 1 or max(dimensions) > _MOST_DIMENSIONS:
        return False
    result = graph.values[op.outputs[0]]
    orders = itertools.permutations(range(dimensions.pop()))
    return all(_strides(graph, op, reached, order) == result.strides for order in orders)


def _strides(graph: Graph, op: Op, reached: set[int], order: Sequence[int]) -> list[int] | None:
    """The strides of the result where the values reached have their dimensions in an order."""
    values = {
        value: _ordered(graph.values[value], order) if value in reached else _meta(graph, value)
        for value in op.inputs
    }
    args, kwargs = decode_arguments(op.arguments)
    try:
        result: Any = resolve(op.target)(
            *(decode(argument, values) for argument in args),
            **{name: decode(argument, values) for name, argument in kwargs.items()},
        )
    except (RuntimeError, NotImplementedError):
        return None
    return list(result.stride())


def _meta(graph: Graph, value: int) -> torch.Tensor:
    like = graph.values[value]
    dtype = getattr(torch, like.dtype)
    return torch.empty_strided(like.shape, like.strides, dtype=dtype, device="meta")


def _ordered(value: Value, order: Sequence[int]) -> torch.Tensor:
    """A tensor without memory whose dimensions lie in an order."""
    shape = [value.shape[dimension] for dimension in order]
    blank = torch.empty(shape, dtype=getattr(torch, value.dtype), device="meta")
    return blank.permute([order.index(dimension) for dimension in range(len(order))])
