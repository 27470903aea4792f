"""Runs a graph as it stands: what the file means, and what its plans are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, GraphValue
from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.torch_utils.operators import decode_argument, training_operator
from tightfit.util.errors import ModelError


@dataclass(frozen=True)
class GraphRunResult:
    """What a step gives: the outputs' leaves, and gradients by parameter path or input number."""

    outputs: list[Any]
    gradients: dict[str | int, torch.Tensor]
    values: dict[int, torch.Tensor]


def run_graph(
    graph: Graph,
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    loss: Callable[[list[Any]], list[torch.Tensor]],
) -> GraphRunResult:
    """Runs forward, loss and backward in captured order, and writes the model's buffers.

    `loss` takes the output's leaves and returns the tangents of the loss op, in its order. Keeps
    every value. Raises ArtifactError when the graph names what may not be called, ModelError when
    the model lacks one of its tensors.
    """
    values = dict(_fixed_values(graph, model, args, kwargs))
    for op in graph.ops:
        if op.target == LOSS_TARGET:
            results: Any = loss(_outputs(graph, values))
        else:
            call_args, call_kwargs = decode_arguments(op.arguments)
            with torch.no_grad():
                results = training_operator(op.target)(
                    *decode_argument(call_args, values),
                    **{name: decode_argument(item, values) for name, item in call_kwargs.items()},
                )
        if op.writes:
            continue
        for value, result in zip(op.outputs, pytree.tree_leaves(results), strict=True):
            if value != NO_VALUE:
                values[value] = result
    places = {value: index for index, value in enumerate(graph.inputs)}
    gradients: dict[str | int, torch.Tensor] = {}
    for gradient in graph.gradients:
        owner = graph.values[gradient.value]
        key = owner.path if owner.kind == "parameter" else places[owner.id]
        part = values[gradient.gradient]
        gradients[key] = gradients[key] + part if key in gradients else part
    return GraphRunResult(_outputs(graph, values), gradients, values)


def constant_tensor(value: GraphValue) -> torch.Tensor:
    """The tensor of a constant, contiguous, on the CPU."""
    dtype = getattr(torch, value.dtype)
    if not value.data:
        return torch.empty(value.shape, dtype=dtype)
    data = torch.from_numpy(np.frombuffer(value.data, np.uint8).copy())
    return data.view(dtype).reshape(value.shape)


def _fixed_values(
    graph: Graph, model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[int, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    leaves = flatten((tuple(args), kwargs))[0]
    values = {
        value: leaf.detach()
        for value, leaf in zip(graph.inputs, leaves, strict=True)
        if value != NO_VALUE
    }
    for value in graph.values:
        if value.kind == "constant":
            values[value.id] = constant_tensor(value)
        elif value.kind in ("parameter", "buffer"):
            if value.path not in tensors:
                raise ModelError(f"the model has no {value.kind} {value.path!r}")
            values[value.id] = tensors[value.path].detach()
    return values


def _outputs(graph: Graph, values: dict[int, torch.Tensor]) -> list[Any]:
    return [
        values[output.value] if output.value != NO_VALUE else output.constant
        for output in graph.outputs
    ]
