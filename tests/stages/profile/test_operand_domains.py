"""Ops with a domain are measured, and whatever state the caller has changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.profile import measure
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "TIMING_SECONDS", 0.0)


class Ending(nn.Module):
    """A linear layer, then something that has a domain."""

    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.linear(x))


def traced(end: Callable[[Tensor], Tensor]) -> Graph:
    return trace(check_factory_result((Ending(end), ((torch.randn(4, 6),), {})), "model"), "model")


def costs_of(graph: Graph, store: Path) -> Costs:
    with open_cost_library(store, describe_device("cpu")) as opened:
        return profile(graph, None, opened)


DOMAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "likelihood": lambda y: functional.binary_cross_entropy(
        y.sigmoid(), torch.full_like(y, 0.5), reduction="none"
    ),
    "bernoulli": lambda y: torch.bernoulli(y.sigmoid()) * y,
    "multinomial": lambda y: torch.multinomial(y.softmax(-1), 2) * y.sum(),
    "poisson": lambda y: torch.poisson(y.exp()) * y,
    "segments": lambda y: torch.segment_reduce(y, "sum", lengths=torch.tensor([1, 3])),
    "classes": lambda y: functional.multi_margin_loss(y, torch.tensor([0, 1, 2, 3])),
    "unpooled": lambda y: functional.max_unpool2d(
        *functional.max_pool2d(y.view(1, 1, 4, 6), 2, return_indices=True), [2, 2]
    ),
    "determinant": lambda y: torch.linalg.det(y.t() @ y + torch.eye(6)),
    "eigenvalues": lambda y: torch.linalg.eigh(y.t() @ y + torch.eye(6))[0],
}


@pytest.mark.parametrize("name", DOMAINS)
def test_ops_with_a_domain_are_measured(name: str, tmp_path: Path) -> None:
    graph = traced(DOMAINS[name])
    costs = costs_of(graph, tmp_path)
    assert all(costs.of(graph, op).seconds > 0 for op in graph.ops if op.phase != "loss")


LARGER: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda y: functional.binary_cross_entropy(y.sigmoid(), torch.full_like(y, 0.5)),
    "window": lambda y: y * torch.hann_window(6),
    "columns": lambda y: functional.unfold(y.view(1, 1, 4, 6), 2),
    "maxima": lambda y: functional.embedding_bag(
        torch.tensor([[1, 2, 3], [0, 1, 2]]), y, mode="max"
    ),
}
"""What leaves larger storages than fake tensors say."""


@pytest.mark.parametrize("name", LARGER)
def test_storages_have_the_sizes_that_are_measured(name: str, tmp_path: Path) -> None:
    graph = traced(LARGER[name])
    costs_of(graph, tmp_path)
    sizes = {value.storage: 0 for value in graph.values}
    for value in graph.values:
        item = torch.empty(0, dtype=getattr(torch, value.dtype)).element_size()
        sizes[value.storage] = max(sizes[value.storage], item * math.prod(value.shape))
    assert any(graph.storages[storage] > size for storage, size in sizes.items())


def test_a_storage_of_another_size_is_refused_by_name(tmp_path: Path) -> None:
    graph = traced(torch.tanh)
    op = next(op for op in graph.ops if op.target == "aten.tanh.default")
    graph.storages[graph.values[op.outputs[0]].storage] += 8
    with pytest.raises(
        ModelError, match=r"tanh\.default of model, at .*keeps 96 bytes for results of 104 bytes"
    ):
        costs_of(graph, tmp_path)


def test_what_is_made_of_nothing_can_be_a_buffer(tmp_path: Path) -> None:
    graph = traced(lambda y: y * torch.arange(6))
    op = next(op for op in graph.ops if op.target.startswith("aten.arange."))
    graph.storages[graph.values[op.outputs[0]].storage] += 8
    with pytest.raises(ModelError, match="make what it gives once and register it as a buffer"):
        costs_of(graph, tmp_path)


class Raising(TorchDispatchMode):
    """A mode of the caller that must see nothing."""

    def __torch_dispatch__(self, function: object, *_: object) -> object:
        raise AssertionError(function)


@contextmanager
def dtype(name: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(name)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


STATES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "float64": lambda: dtype(torch.float64),
    "device": lambda: torch.device("meta"),
    "mode": Raising,
}


@pytest.mark.parametrize("name", STATES)
def test_costs_do_not_depend_on_the_callers_state(name: str, tmp_path: Path) -> None:
    graph = traced(lambda y: (y @ y.t()).softmax(-1).std())
    wanted = costs_of(graph, tmp_path / "plain")
    with STATES[name]():
        found = costs_of(graph, tmp_path / name)
    memory = {key: (row.peak, row.net) for key, row in wanted.rows.items()}
    assert {key: (row.peak, row.net) for key, row in found.rows.items()} == memory
    assert torch.get_default_dtype() == torch.float32
