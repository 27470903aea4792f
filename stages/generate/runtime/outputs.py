"""Puts the outputs of a step together as the model's own forward returns them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .facts import Interface, Leaf
from .trees import read_tree

Tensors = Sequence[torch.Tensor]
Assemble = Callable[[Tensors, Tensors, Tensors], Any]


def assembler(interface: Interface) -> Assemble:
    """A function of the differentiable outputs, the plain ones and the tensors of the step, which
    returns the model's output."""
    tree = read_tree(interface.output_tree)
    leaves = interface.outputs

    def assemble(differentiable: Tensors, plain: Tensors, tensors: Tensors) -> Any:
        sources = {"differentiable": differentiable, "plain": plain, "tensor": tensors}
        return tree.unflatten(leaf_of(leaf, sources) for leaf in leaves)

    def leaf_of(leaf: Leaf, sources: dict[str, Tensors]) -> Any:
        if leaf.source == "constant":
            return leaf.value
        if leaf.source == "detached":
            return sources["tensor"][leaf.position].detach()
        return sources[leaf.source][leaf.position]

    return assemble
