"""Sums of gradients of which a part is a view of what was made before the others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import compare, generated, recompute
from tests.stages.trace.eager_comparison import check_against_eager
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.trace import trace


class Squared(nn.Module):
    """A weight that is multiplied with, or added to, what is a view of itself."""

    def __init__(self, work: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.work(self.weight)


def _gram(weight: Tensor) -> Tensor:
    return weight @ weight.T


def _twice(weight: Tensor) -> Tensor:
    return weight @ weight.T @ weight @ weight.T


def _batched(weight: Tensor) -> Tensor:
    return torch.bmm(weight[None], weight.T[None])[0]


def _einsum(weight: Tensor) -> Tensor:
    return torch.einsum("ij,kj->ik", weight, weight)


def _viewed(weight: Tensor) -> Tensor:
    return weight + weight.view(-1).view(3, 3)


@pytest.mark.parametrize("work", [_gram, _twice, _batched, _einsum, _viewed])
def test_the_parts_of_a_gradient_are_made_in_their_order(
    work: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    built = BuiltModel(Squared(work), [((torch.randn(2, 3),), {})], label="squared")
    graph = trace(built, "squared")
    [parts] = partial_gradients_by_owner(graph).values()
    assert len(parts) > 1
    assert all(_maker(graph, one) <= _maker(graph, other) for one, other in pairwise(parts))
    check_against_eager(graph, built, tmp_path / "graph.arrow")


class Residual(nn.Module):
    """A sum whose gradient is a part of that of an input, and is read behind the other part."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.weight.sin(), x.sin()
        return (first + x).tanh() + second


def test_a_part_that_is_read_behind_the_next_one_is_copied(tmp_path: Path) -> None:
    built = BuiltModel(Residual(), [((torch.randn(4, 4).requires_grad_(),), {})], label="residual")
    graph = trace(built, "residual")
    [(first, second)] = [p for p in partial_gradients_by_owner(graph).values() if len(p) > 1]
    storage = graph.values[first].storage
    readers = [
        op.id
        for op in graph.ops
        if any(graph.values[value].storage == storage for value in op.inputs)
    ]
    assert all(reader <= _maker(graph, second) for reader in readers)
    check_against_eager(graph, built, tmp_path / "graph.arrow")
    package = generated(graph, tmp_path / "module", recompute(graph, 1, 1.0))
    compare(package, built)


def _maker(graph: Graph, value: int) -> int:
    """The op that makes the storage of a value."""
    storage = graph.values[value].storage
    return next(
        op.id
        for op in graph.ops
        if any(graph.values[made].storage == storage for made in op.outputs)
    )
