"""What an op asks of the allocator of a GPU, measured on doubles of torch.cuda."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from schemas.costs import Allocations
from schemas.graph import NONE
from stages.profile import measure as room
from stages.profile.measure import measure_op
from tests.stages.device.gpus import Gpus, stand_in
from tests.stages.profile.test_profile import graph_of


class Product:
    """An operator that takes its result, and a block beside it; the first time that also takes a
    workspace, which stays until it is cleared."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus
        self.workspace = False

    def clear(self) -> None:
        if self.workspace:
            self.gpus.take(0, -8000, address=9)
        self.workspace = False

    def __call__(self, *_: Any) -> Result:
        if not self.workspace:
            self.workspace = True
            self.gpus.take(0, 8000, address=9)
        self.gpus.take(0, 400, address=1)
        self.gpus.take(0, 60, address=2)
        self.gpus.take(0, -60, address=2)
        return Result(self.gpus)


class Result:
    """A result that gives its block back when it is dropped."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus

    def __del__(self) -> None:
        self.gpus.take(0, -400, address=1)


def test_an_op_has_its_own_allocations_and_those_that_libraries_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = graph_of((torch.nn.Linear(4, 4).train(), ((torch.ones(2, 4),), {})), "m")
    op = next(op for op in graph.ops if "mm" in op.target)
    product = Product(stand_in(monkeypatch))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", product.clear, raising=False)
    monkeypatch.setattr(room, "make_sweep", lambda *_: None)
    accepted: Callable[..., Any] = room._accepted
    on_cpu = torch.device("cpu")
    monkeypatch.setattr(
        room, "_accepted",
        lambda graph, op, overload, device, limit: replace(
            accepted(graph, op, overload, on_cpu, limit), device=device
        ),
    )  # fmt: skip
    monkeypatch.setattr(room._OpRun, "call", lambda self, in_place: product)
    [cost] = measure_op(graph, op, {NONE}, torch.device("cuda", 0))
    assert cost.allocations == Allocations([400, 60, -2], [8000])
    assert (cost.peak, cost.net) == (460, 400)
    monkeypatch.undo()
    [plain] = measure_op(graph, op, {NONE}, on_cpu)
    assert plain.allocations is None
