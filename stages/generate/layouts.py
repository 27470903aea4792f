"""Which gradients of outputs the step can take in other strides than it was traced with.

The backward of eager runs on a gradient as it arrives. What the step makes of it is the same, bit
for bit, where it runs the same operators on the same strides, or where these do not matter.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.schemas.actions import Compute, WriteBuffer
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, GraphValue, Op
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.generate.graph_guards import parse_guards
from tightfit.stages.runtime.strides import has_ordered_strides
from tightfit.stages.torch_utils.operators import decode_argument, resolve

STRIDES_ACCEPTED, STRIDES_COPIED, STRIDES_REFUSED = "accept", "copy", "reject"

VIEW_TARGET, RESHAPE_TARGET = "aten.view.default", "aten.reshape.default"
"""A view in a trace of the backward, and what autograd does there: it copies where it must."""

CAT_TARGET = "aten.cat.default"
_UNSAFE_VIEW = "aten._unsafe_view.default"

FIXED_LAYOUT_OPS = frozenset(
    f"aten.{name}"
    for name in (
        *("mm.default", "addmm.default", "bmm.default", "sum.default", "sum.dim_IntList"),
        *("convolution_backward.default", "native_layer_norm_backward.default"),
        *("native_batch_norm_backward.default", "embedding_dense_backward.default"),
        *("_softmax_backward_data.default", "_log_softmax_backward_data.default"),
        *("select_backward.default", "slice_backward.default", "new_zeros.default"),
    )
)
"""Operators that lay out their results alike whatever the strides of a gradient."""

_STRIDE_AGNOSTIC_OPS = frozenset(
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

_VIEW_OPS = frozenset(
    f"aten.{name}"
    for name in (
        *("t.default", "transpose.int", "permute.default", "unsqueeze.default", "alias.default"),
        *("squeeze.default", "squeeze.dim", "squeeze.dims", "expand.default", "detach.default"),
        *("select.int", "slice.Tensor"),
    )
)
_ALWAYS_VIEW_OPS = _VIEW_OPS | {_UNSAFE_VIEW}
_ELEMENTWISE_OPS = frozenset(
    f"aten.{name}"
    for name in (
        *("threshold_backward.default", "leaky_relu_backward.default"),
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"),
    )
)
"""Elementwise operators that lay out their result as their first operands are: with a gradient
further back its strides can be nothing to them. The kernels of these operators for tensors without
memory say so."""

_SCATTER_OPS = frozenset(
    f"aten.{name}"
    for name in (
        *("slice_scatter.default", "select_scatter.default", "diagonal_scatter.default"),
        *("index_add.default", "index_put.default", "scatter_add.default"),
    )
)
"""Operators that copy their further operands into a tensor laid out as the first one."""

_GRADIENT_KERNELS = re.compile(
    r"aten\.("
    r"_?upsample_\w+_backward|_?(adaptive_)?(avg|max)_pool[123]d(_with_indices)?_backward"
    r"|(reflection|replication)_pad[123]d_backward|constant_pad_nd|pixel_(un)?shuffle"
    r"|_fft_(c2c|c2r|r2c)|_conj|grid_sampler_[23]d_backward"
    r")\.(default|vec)"
)
"""Operators that autograd gives a gradient as it is, so that they lay out their result in a step as
in eager."""

_COPY_OPS = ("aten.clone.default", "aten._to_copy.default")
_MAX_DIMENSIONS = 5


@dataclass(frozen=True)
class GradientLayouts:
    """How the step takes each tangent that arrives in other strides: as it is, laid out anew, or
    not. `loose` are the sums of gradients whose result may have the strides of the one operand that
    is there. `reshaped` are the views of the backward that may then have to copy, and the copies
    for a view that may then not be due."""

    taken: dict[int, str]
    loose: frozenset[int]
    reshaped: frozenset[int]

    def incoming_storages(self, graph: Graph) -> set[int]:
        """The storages of the gradients of outputs, and those that may be as one of them lies, or
        in its memory."""
        made = [graph.op(op).outputs[0] for op in self.loose | self.reshaped]
        return {graph.values[value].storage for value in [*self.taken, *made] if value != NO_VALUE}


def gradient_layouts(
    graph: Graph, steps: Sequence[ScheduleStep], joined: Iterable[int]
) -> GradientLayouts:
    """Finds how the step of a schedule takes the tangents; `joined` are the ops in which gradients
    meet of which some may be absent."""
    loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
    if parse_guards(graph).get("no_python_backward") is not True:
        # Python in the backward may ask for a layout, which a trace does not show.
        return GradientLayouts(
            dict.fromkeys(loss.outputs, STRIDES_REFUSED), frozenset(), frozenset()
        )
    runs = [step.action for step in steps if isinstance(step.action, Compute | WriteBuffer)]
    in_place = {run.op: run.in_place for run in runs if run.in_place != NO_VALUE}
    taken, loose, reshaped = {}, set(), set()
    for op in (graph.ops[index] for index in joined):
        views = _affected_views(graph, op.outputs[0], in_place)
        if views is not None:
            loose.add(op.id)
            reshaped |= views
    for tangent in loss.outputs:
        views = _affected_views(graph, tangent, in_place)
        if views is not None:
            taken[tangent] = STRIDES_ACCEPTED
            reshaped |= views
        else:
            taken[tangent] = STRIDES_COPIED if _ignores_strides(graph, tangent) else STRIDES_REFUSED
    return GradientLayouts(taken, frozenset(loose), frozenset(reshaped))


def _affected_views(graph: Graph, tangent: int, in_place: dict[int, int]) -> set[int] | None:
    """The views from a tangent to where its strides no longer matter; None where the step would
    do something else there than eager."""
    reached, views = {tangent}, set()
    for op in graph.ops:
        if reached.isdisjoint(op.inputs) or op.target == LOSS_TARGET:
            continue
        if in_place.get(op.id, NO_VALUE) in reached:
            return None
        if (
            op.target in FIXED_LAYOUT_OPS
            or _is_concatenation(graph, op)
            or _has_one_layout(graph, op, reached)
            or (op.target in _SCATTER_OPS and op.inputs[0] not in reached)
        ):
            continue
        if _is_contiguous_copy(op) and (
            _only_concatenated(graph, op.outputs[0]) or not _is_reshaped(graph, op)
        ):
            continue
        if op.target == VIEW_TARGET or _is_for_view(graph, op):
            views.add(op.id)
        elif op.target not in _ALWAYS_VIEW_OPS and (op.id in in_place or not _follows_operands(op)):
            return None
        reached.update(op.outputs)
    return views


def _is_concatenation(graph: Graph, op: Op) -> bool:
    """Whether an op copies tensors into one that is contiguous, as `cat` does where no layout with
    the channels last is known."""
    return op.target == CAT_TARGET and len(graph.values[op.outputs[0]].shape) not in (4, 5)


def _is_contiguous_copy(op: Op) -> bool:
    """Whether an op is the copy of a reshape: with other strides eager may have done without."""
    given = decode_arguments(op.arguments)[1].get("memory_format")
    return op.target == _COPY_OPS[0] and given == {"memory_format": "contiguous_format"}


def _is_reshaped(graph: Graph, op: Op) -> bool:
    """Whether a contiguous copy is that of a reshape, not of `contiguous()`, after which there is a
    contiguous tensor in any case."""
    readers = (other for other in graph.ops if op.outputs[0] in other.inputs)
    return any(reader.target == _UNSAFE_VIEW for reader in readers)


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


def _only_concatenated(graph: Graph, value: int) -> bool:
    """Whether all that reads a value, or a view of it, copies it into another tensor."""
    if any(gradient.gradient == value for gradient in graph.gradients):
        return False
    return all(
        _is_concatenation(graph, op)
        or (
            (op.target in _VIEW_OPS or op.target in (VIEW_TARGET, _UNSAFE_VIEW))
            and _only_concatenated(graph, op.outputs[0])
        )
        for op in graph.ops
        if value in op.inputs
    )


def _follows_operands(op: Op) -> bool:
    """Whether an operator gives a result laid out as its operands are, as eager's does."""
    if _GRADIENT_KERNELS.fullmatch(op.target):
        return True
    if op.target in _COPY_OPS:
        return "memory_format" not in decode_arguments(op.arguments)[1]
    return torch.Tag.pointwise in resolve(op.target).tags


def _ignores_strides(graph: Graph, tangent: int) -> bool:
    """Whether the strides of a tangent are nothing to all that reads it or a view of it."""
    return all(
        op.target in _STRIDE_AGNOSTIC_OPS
        or _has_one_layout(graph, op, {tangent})
        or (op.target in _VIEW_OPS and _ignores_strides(graph, op.outputs[0]))
        for op in graph.ops
        if tangent in op.inputs
    )


def _has_one_layout(graph: Graph, op: Op, reached: set[int]) -> bool:
    """Whether an elementwise operator gives a result in the planned strides whatever the order of
    the dimensions of those `reached`."""
    moved = [graph.values[value] for value in op.inputs if value in reached]
    dimensions = {len(value.shape) for value in moved}
    if (
        op.target not in _ELEMENTWISE_OPS
        or len(dimensions) > 1
        or max(dimensions) > _MAX_DIMENSIONS
    ):
        return False
    result = graph.values[op.outputs[0]]
    orders = itertools.permutations(range(dimensions.pop()))
    return all(_result_strides(graph, op, reached, order) == result.strides for order in orders)


def _result_strides(
    graph: Graph, op: Op, reached: set[int], order: Sequence[int]
) -> list[int] | None:
    """The strides of the result where the values reached have their dimensions in an order."""
    values = {
        value: _permuted_meta_tensor(graph.values[value], order)
        if value in reached
        else _meta_tensor(graph, value)
        for value in op.inputs
    }
    args, kwargs = decode_arguments(op.arguments)
    try:
        result: Any = resolve(op.target)(
            *(decode_argument(argument, values) for argument in args),
            **{name: decode_argument(argument, values) for name, argument in kwargs.items()},
        )
    except (RuntimeError, NotImplementedError):
        return None
    return list(result.stride())


def _meta_tensor(graph: Graph, value: int) -> torch.Tensor:
    like = graph.values[value]
    dtype = getattr(torch, like.dtype)
    return torch.empty_strided(like.shape, like.strides, dtype=dtype, device="meta")


def _permuted_meta_tensor(value: GraphValue, order: Sequence[int]) -> torch.Tensor:
    """A tensor without memory whose dimensions lie in an order."""
    shape = [value.shape[dimension] for dimension in order]
    blank = torch.empty(shape, dtype=getattr(torch, value.dtype), device="meta")
    return blank.permute([order.index(dimension) for dimension in range(len(order))])


_CLONE_TARGET = "aten.clone.default"
_PERMUTE_TARGET = "aten.permute.default"


def eager_gradient_strides(
    graph: Graph, slices: list[list[int]]
) -> list[list[tuple[int, ...] | None]]:
    """For each gradient (NONE: there is none) of each slice the strides that it has in eager before
    it is accumulated, None where they are its own."""
    maker = graph.makers()
    return [[_strides_before_copy(graph, maker, value) for value in part] for part in slices]


def _strides_before_copy(
    graph: Graph, maker: dict[int, Op], gradient: int
) -> tuple[int, ...] | None:
    """A copy for a dense owner is one op; for one of another order it is turned there and back."""
    back = _operand(maker, gradient, _PERMUTE_TARGET)
    source = _operand(maker, gradient if back is None else back, _CLONE_TARGET)
    if source is not None and back is not None:
        source = _operand(maker, source, _PERMUTE_TARGET)
    if source is None:
        return None
    own, before = graph.values[gradient], graph.values[source]
    if before.shape != own.shape:
        return None
    zipped = zip(own.shape, own.strides, before.strides, strict=True)
    differs = any(size > 1 and one != other for size, one, other in zipped)
    return tuple(before.strides) if differs else None


def _operand(maker: dict[int, Op], value: int, target: str) -> int | None:
    """What a value is made of, where an op of this target makes it."""
    op = maker.get(value)
    return op.inputs[0] if op is not None and op.target == target and op.inputs else None


_LOOKUP_OPS = frozenset(
    f"aten.{name}"
    for name in (
        *("embedding.default", "embedding_dense_backward.default", "index.Tensor"),
        *("index_select.default", "gather.default", "nll_loss_forward.default"),
        *("nll_loss_backward.default", "nll_loss2d_forward.default"),
        *("nll_loss2d_backward.default", "_to_copy.default"),
    )
)
"""Operators to whose results it is nothing how their indices lie in memory."""


def stride_flexible_inputs(graph: Graph) -> list[int]:
    """The inputs of integers or booleans of which the step computes the same, bit for bit, from a
    copy of what came with other gaps, its dimensions in the same order.

    Sums of integers are exact, and elementwise operators lay out what they make of such an input
    in one way. Inputs that are returned or written are eager's own, and a forward that asks
    how a tensor lies in memory may ask it of them.
    """
    if parse_guards(graph).get("queries_layout") is not False:
        return []
    return [
        at
        for at in copyable_inputs(graph)
        if _is_exact_dtype(value := graph.values[at])
        and has_ordered_strides(value.shape, value.strides)
        and all(
            _is_stride_agnostic(graph, op)
            for op in graph.ops
            if _reads_storage(graph, op, value.storage)
        )
    ]


def copyable_inputs(graph: Graph) -> list[int]:
    """The inputs in whose place the step may be given a copy: those neither returned, as they are
    or as a view, nor written."""
    shown = {graph.values[out.value].storage for out in graph.outputs if out.value != NO_VALUE}
    written = {graph.values[value].storage for op in graph.ops for value in op.writes}
    return [
        value.id
        for value in graph.values
        if value.kind == "input" and value.storage not in shown | written
    ]


def _reads_storage(graph: Graph, op: Op, storage: int) -> bool:
    return any(graph.values[value].storage == storage for value in op.inputs)


def _is_stride_agnostic(graph: Graph, op: Op) -> bool:
    """Whether an operator makes the same of integers whatever the gaps between them."""
    if graph.is_view(op) or op.target in _LOOKUP_OPS:
        return True
    if all(_is_exact_dtype(graph.values[value]) for value in op.outputs if value != NO_VALUE):
        return True
    return torch.Tag.pointwise in resolve(op.target).tags


def _is_exact_dtype(value: GraphValue) -> bool:
    dtype = getattr(torch, value.dtype)
    return not (dtype.is_floating_point or dtype.is_complex)
