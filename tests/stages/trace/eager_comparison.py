"""Runs a traced graph from its file beside the model it was made from and compares bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.stages.trace.graph_interpreter import GraphRunResult, run_graph
from tightfit.schemas.graph.training_graph import (
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    read_graph,
    write_graph,
)
from tightfit.stages.runtime.pytree import flatten, read_tree
from tightfit.stages.torch_utils.model_factory import BuiltModel


def equal(one: Any, other: Any) -> bool:
    """Bit for bit, with the same dtype; not-a-numbers are equal."""
    if not isinstance(one, torch.Tensor):
        return one == other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(
        one.detach().contiguous().reshape(-1).view(torch.uint8),
        other.detach().contiguous().reshape(-1).view(torch.uint8),
    )


def check_against_eager(
    graph: Graph, built: BuiltModel, path: Path, seed: int = 7
) -> GraphRunResult:
    """Asserts that the file's program gives the outputs, gradients and buffers of the model, and
    that every value has the recorded shape, strides, dtype and aliases."""
    write_graph(path, graph)
    graph = read_graph(path)
    args, kwargs = built.samples[0]
    twin = copy.deepcopy(built.model)
    torch.manual_seed(seed)
    eager_leaves, tree = flatten(built.model(*args, **kwargs))
    tangents = _backward(graph, built, eager_leaves, tree)
    torch.manual_seed(seed)
    outcome = run_graph(graph, twin, args, kwargs, lambda leaves: tangents)
    assert tree == graph.output_tree
    check_outputs(graph, outcome, eager_leaves)
    check_gradients(graph, outcome, built)
    buffers = dict(twin.named_buffers())
    for name, buffer in built.model.named_buffers():
        assert equal(buffer, buffers[name]), name
    check_layout(graph, outcome)
    return outcome


def _backward(graph: Graph, built: BuiltModel, leaves: list[Any], tree: str) -> list[torch.Tensor]:
    roots = {}
    for output, leaf in zip(graph.outputs, leaves, strict=True):
        if output.tangent != NO_VALUE:
            roots[output.tangent] = leaf
    if built.loss is None:
        given = [torch.randn_like(leaf) for leaf in roots.values()]
    else:
        apart = [
            leaf.detach().requires_grad_() if output.tangent != NO_VALUE else leaf
            for output, leaf in zip(graph.outputs, leaves, strict=True)
        ]
        scalar = built.loss(read_tree(tree).unflatten(apart))
        wanted = {
            output.tangent: leaf
            for output, leaf in zip(graph.outputs, apart, strict=True)
            if output.tangent != NO_VALUE
        }
        given = list(torch.autograd.grad(scalar, list(wanted.values())))
    torch.autograd.backward(list(roots.values()), given)
    tangents = dict(zip(roots, given, strict=True))
    [loss] = [op for op in graph.ops if op.target == LOSS_TARGET]
    return [_with_strides(tangents[value], graph.values[value].strides) for value in loss.outputs]


def _with_strides(tangent: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """A gradient that came from outside, in the layout that the graph expects."""
    if list(tangent.stride()) == strides:
        return tangent.detach()
    like = torch.empty_strided(tangent.shape, strides, dtype=tangent.dtype, device=tangent.device)
    return like.copy_(tangent.detach())


def check_outputs(graph: Graph, outcome: GraphRunResult, eager: list[Any]) -> None:
    for output, mine, theirs in zip(graph.outputs, outcome.outputs, eager, strict=True):
        if output.value != NO_VALUE:
            assert equal(mine, theirs)
            assert mine.stride() == theirs.stride()
        assert (output.tangent != NO_VALUE) <= isinstance(theirs, torch.Tensor)


def check_gradients(graph: Graph, outcome: GraphRunResult, built: BuiltModel) -> None:
    expected: dict[str | int, torch.Tensor] = {
        name: parameter.grad
        for name, parameter in built.model.named_parameters()
        if parameter.grad is not None
    }
    for index, leaf in enumerate(pytree.tree_leaves(built.samples[0])):
        if isinstance(leaf, torch.Tensor) and leaf.grad is not None:
            expected[index] = leaf.grad
    assert set(expected) == set(outcome.gradients)
    for key, gradient in expected.items():
        mine = outcome.gradients[key]
        assert equal(mine, gradient), key
        assert mine.stride() == gradient.stride(), key
    storages = [mine.untyped_storage().data_ptr() for mine in outcome.gradients.values()]
    assert len(set(storages)) == len(storages)


def check_layout(graph: Graph, outcome: GraphRunResult) -> None:
    """Real tensors are as the graph says, and share storages exactly where it says so."""
    pointers: dict[int, int] = {}
    for value in graph.values:
        if value.id not in outcome.values:
            continue
        tensor = outcome.values[value.id]
        assert list(tensor.shape) == value.shape
        assert list(tensor.stride()) == value.strides, (value, tensor.stride())
        assert tensor.storage_offset() == value.offset
        assert str(tensor.dtype) == f"torch.{value.dtype}"
        storage = tensor.untyped_storage()
        if value.kind == "intermediate":
            assert storage.nbytes() == graph.storages[value.storage], value
        if storage.nbytes() and graph.storages[value.storage]:
            known = pointers.setdefault(value.storage, storage.data_ptr())
            assert known == storage.data_ptr()
            if value.kind == "input":
                del pointers[value.storage]
    assert len(set(pointers.values())) == len(pointers)
