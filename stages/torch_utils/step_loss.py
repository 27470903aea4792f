"""The loss of what a step gives: the model's output, or a pair with what the forward stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torch import Tensor

from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.stages.runtime.pytree import read_tree
from tightfit.stages.runtime.side_effects import (
    SideEffects,
    loss_with_side_effects,
    read_side_effects,
)
from tightfit.stages.torch_utils.model_factory import BuiltModel


def graph_side_effects(graph: Graph) -> SideEffects:
    """What the forward of a graph does beside returning its output."""
    return SideEffects(read_side_effects(json.loads(graph.guards or "{}").get("guards")))


def outputs_without_gradient(graph: Graph) -> tuple[str, ...]:
    """The parts of the model's output that could receive a gradient and receive none from the loss
    that was planned."""
    tree = read_tree(graph.output_tree)
    own = tree.children[0] if graph_side_effects(graph) else tree
    parts = zip(own.paths("output"), graph.outputs, strict=False)
    return tuple(
        path
        for path, output in parts
        if graph.has_loss and output.requires_grad and output.tangent == NO_VALUE
    )


def step_loss(graph: Graph, built: BuiltModel) -> Callable[[Any], Tensor] | None:
    """The loss of a model as one of what the steps of its graph give; None where it has none."""
    if built.loss is None:
        return None
    return loss_with_side_effects(built.loss, graph_side_effects(graph), built.model)
