"""The bytes that a plan leaves to a loss that runs outside of it, between forward and backward."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tightfit.schemas.graph.op_arguments import decode_arguments, encode_arguments
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.schemas.graph.training_graph import (
    LOSS_ROOM_ARGUMENT,
    LOSS_SCALAR_BYTES,
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    GraphValue,
)

_MIN_LOSS_ITEM_BYTES = DTYPE_BYTES["float32"]
_LABEL_BYTES = DTYPE_BYTES["int64"]


def usual_loss_room(graph: Graph) -> int:
    """What the usual losses take beside the outputs of a graph and their gradients, in bytes.

    It is what cross entropy takes, since `mse_loss` takes less: for each output the log-softmax,
    kept until its backward, and within one backward the gradients of the log-softmax and of its
    input. Where an output has less than float32, all three are float32, as if the loss copied it
    (`logits.float()`, or autocast). Copies of the labels count, too, and the scalars that are held
    to the end of the step. A model whose outputs with gradients include a scalar computes its loss
    itself: 0, as for a traced loss.
    """
    tensors = _outputs_with_gradients(graph)
    shapes = [tensor.shape for tensor in tensors]
    if graph.has_loss or not tensors or any(prod(shape) == 1 for shape in shapes):
        return 0
    kept = [
        prod(tensor.shape) * max(DTYPE_BYTES[tensor.dtype], _MIN_LOSS_ITEM_BYTES)
        for tensor in tensors
    ]
    received = [prod(tensor.shape) * DTYPE_BYTES[tensor.dtype] for tensor in tensors]
    labels = _LABEL_BYTES * sum(prod(shape[:-1]) for shape in shapes)
    return sum(kept) + 2 * max(kept) - sum(received) + labels + LOSS_SCALAR_BYTES


def with_loss_room(graph: Graph, room: int | None) -> Graph:
    """The graph with so many bytes for a loss outside of it, by default `usual_loss_room`."""
    size = usual_loss_room(graph) if room is None else room
    if not size:
        return graph
    ops = list(graph.ops)
    at = next(op.id for op in ops if op.target == LOSS_TARGET)
    args, kwargs = decode_arguments(ops[at].arguments)
    arguments = encode_arguments(args, {**kwargs, LOSS_ROOM_ARGUMENT: size})
    ops[at] = replace(ops[at], arguments=arguments)
    return replace(graph, ops=ops)


def _outputs_with_gradients(graph: Graph) -> list[GraphValue]:
    """The outputs that receive a gradient, each once."""
    values = dict.fromkeys(out.value for out in graph.outputs if out.tangent != NO_VALUE)
    return [graph.values[value] for value in values]
