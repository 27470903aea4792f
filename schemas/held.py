"""Who has what of a graph beside the step: values and storages by their holder."""

from __future__ import annotations

from tightfit.schemas.graph import NONE, Graph


def held_storages(graph: Graph) -> set[int]:
    """The storages of what the caller holds to the end of the step."""
    return {graph.values[value].storage for value in graph.held_values()}


def gradient_storages(graph: Graph) -> set[int]:
    """The storages of what autograd adds up to gradients of parameters and inputs."""
    return {graph.values[each.gradient].storage for each in graph.gradients}


def loss_values(graph: Graph) -> set[int]:
    """The outputs and their tangents: what a loss is given, and what it gives back."""
    pairs = ((output.value, output.tangent) for output in graph.outputs)
    return {value for pair in pairs for value in pair} - {NONE}
