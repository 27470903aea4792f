"""Ops that run again by a shorter form, from what their first run left.

The batch statistics of a batch norm are its second and third output and stay for its backward. A
second run need not find them again: it scales and shifts. Scaling and shifting take a quarter of
the time, and read the same numbers into the same formula. `stages.runtime.operators` has the calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, GraphValue, Op

_BATCH_NORM = "aten._native_batch_norm_legit_functional.default"
_TRAINING = 5
"""The position of batch norm's argument `training`."""
_CHANNELS_LAST_DIMENSIONS = (4, 5)
"""The numbers of dimensions for which PyTorch has such a format: a sequence in it is computed by
another formula, as tensors in any other order are."""


@dataclass(frozen=True)
class RecomputeValues:
    """The values that the shorter form reads, in the order of its arguments, and the one it
    makes."""

    reads: list[int]
    makes: int


def find_recompute_values(graph: Graph, op: Op) -> RecomputeValues | None:
    """The form in which an op runs again, None where it is that of its first run.

    Only for what PyTorch computes as scale and shift: on the CPU, where the operand lies in the
    order of its dimensions or with the channels last.
    """
    if graph.device != "cpu" or op.target != _BATCH_NORM:
        return None
    args, _ = decode_arguments(op.arguments)
    if len(args) <= _TRAINING or args[_TRAINING] is not True or NO_VALUE in op.outputs[:3]:
        return None
    operands = [argument.get("value") for argument in args[:3] if isinstance(argument, dict)]
    reads = [value for value in operands if isinstance(value, int)] + op.outputs[1:3]
    if len(reads) != 5 or any(graph.values[value].dtype != "float32" for value in reads):
        return None
    return RecomputeValues(reads, op.outputs[0]) if _is_dense(graph.values[reads[0]]) else None


def _is_dense(value: GraphValue) -> bool:
    """Whether a tensor is contiguous, or an image or a volume with its channels last."""
    dimensions = range(len(value.shape))
    orders = [[*dimensions]]
    if len(value.shape) in _CHANNELS_LAST_DIMENSIONS:
        orders.append([*dimensions[:1], *dimensions[2:], *dimensions[1:2]])
    return any(_strides(value.shape, order) == value.strides for order in orders)


def _strides(shape: list[int], order: list[int]) -> list[int]:
    """The strides of a tensor whose dimensions lie in an order."""
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= shape[dimension]
    return strides


def execution_inputs(graph: Graph, op: Op, repeated: bool) -> list[int]:
    """The values that a run of an op reads."""
    form = find_recompute_values(graph, op) if repeated else None
    return op.inputs if form is None else form.reads


def execution_outputs(graph: Graph, op: Op, repeated: bool) -> list[int]:
    """The values that a run of an op makes."""
    form = find_recompute_values(graph, op) if repeated else None
    return [v for v in op.outputs if v != NO_VALUE] if form is None else [form.makes]
