"""Who has what of a graph beside the step: values and storages by their holder."""

from __future__ import annotations

import itertools

from tightfit.schemas.graph.training_graph import NO_VALUE, Graph


def caller_owned_storages(graph: Graph) -> set[int]:
    """The storages of what the caller holds to the end of the step."""
    return {graph.values[value].storage for value in graph.caller_owned_values()}


def gradient_storages(graph: Graph) -> set[int]:
    """The storages of what autograd adds up to gradients of parameters and inputs."""
    return {graph.values[each.gradient].storage for each in graph.gradients}


def loss_interface_values(graph: Graph) -> set[int]:
    """The outputs and their tangents: what a loss is given, and what it gives back."""
    pairs = ((output.value, output.tangent) for output in graph.outputs)
    return {value for pair in pairs for value in pair} - {NO_VALUE}


def partial_gradients_by_owner(graph: Graph) -> dict[int, list[int]]:
    """By owner, the values whose sum is its gradient, in the order in which they are added."""
    found: dict[int, list[int]] = {}
    for gradient in graph.gradients:
        found.setdefault(gradient.value, []).append(gradient.gradient)
    return found


def previous_partial_gradients(graph: Graph) -> dict[int, int]:
    """By contribution that is not its owner's first, the one before it."""
    return {
        value: before
        for parts in partial_gradients_by_owner(graph).values()
        for before, value in itertools.pairwise(parts)
    }


def partial_gradient_order(graph: Graph) -> dict[int, set[int]]:
    """By op that makes a further contribution, the others that make the ones right before. All of
    these run once, and in this order."""
    further = previous_partial_gradients(graph)
    if not further:
        return {}
    kept = [op for op in graph.ops if not graph.is_view(op)]
    maker = {storage: op.id for op in kept for storage in graph.made_by(op)}
    found: dict[int, set[int]] = {}
    for value, before in further.items():
        later, earlier = (maker.get(graph.values[each].storage) for each in (value, before))
        if later is not None and earlier is not None and later != earlier:
            found.setdefault(later, set()).add(earlier)
    return found
