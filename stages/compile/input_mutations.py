"""The values of a joint graph that are written in place: the backward finds others there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree


def written_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose memory is written: inputs and buffers that the forward updates, by an
    operator such as `copy_` at its end (inductor) or by its caller, to whom it returns the new
    values (other backends).

    Args:
        graph: The joint graph.

    Returns:
        The arguments that operators write, and the placeholders that outputs update.

    Example:
        >>> written_nodes(graph)  # a batch normalization: its running mean and variance
    """
    [output] = graph.find_nodes(op="output")
    roots = [_root_of(form) for form in pytree.arg_tree_leaves(output.meta.get("desc", []))]
    updated = [_root_of(form.mutated_input) for form in roots if hasattr(form, "mutated_input")]
    written = {
        node for node in graph.find_nodes(op="placeholder") if _root_of(_form_of(node)) in updated
    }
    return written.union(*(_written_arguments(node) for node in graph.nodes))


def _form_of(node: fx.Node) -> Any:
    """What AOTAutograd says that a placeholder is."""
    return node.meta.get("desc", node)


def _root_of(form: Any) -> Any:
    """Of a part of a tensor subclass, the form of the whole."""
    while hasattr(form, "base"):
        form = form.base
    return form


def _written_arguments(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that an operator says it writes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            yield from (each for each in pytree.tree_leaves(given) if isinstance(each, fx.Node))
