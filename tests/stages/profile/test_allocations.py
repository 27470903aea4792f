"""What an op, or a loss, asks of the allocator of a GPU, measured on doubles of torch.cuda."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.stages.profile.test_profile import graph_of
from tests.stages.torch_utils.fake_gpus import Gpus, stand_in
from tightfit.schemas.costs import OpAllocations
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.stages.profile import loss as loss_room
from tightfit.stages.profile import measure as room
from tightfit.stages.profile.loss import measure_loss
from tightfit.stages.profile.measure import cache_bytes, measure_op, measure_random_state
from tightfit.stages.profile.operands import make_tensor
from tightfit.stages.torch_utils.operators import resolve

ON_CPU = torch.device("cpu")


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
    monkeypatch.setattr(room, "make_cache_flush", lambda *_: None)
    accepted: Callable[..., Any] = room._find_accepted_run
    monkeypatch.setattr(
        room, "_find_accepted_run",
        lambda graph, op, overload, device, limit: replace(
            accepted(graph, op, overload, ON_CPU, limit), device=device
        ),
    )  # fmt: skip
    monkeypatch.setattr(room._OpRun, "call", lambda self, in_place: product)
    [cost] = measure_op(graph, op, {NO_VALUE}, torch.device("cuda", 0))
    assert cost.allocations == OpAllocations([400, 60, -2], [8000])
    assert (cost.peak, cost.net) == (460, 400)
    monkeypatch.undo()
    [plain] = measure_op(graph, op, {NO_VALUE}, ON_CPU)
    assert plain.allocations is None


class Squares:
    """A loss that takes, of a GPU, 300 bytes for its forward and keeps them to its backward, which
    takes 40 for the tangent and 8 in between; each thread has a workspace, until it is cleared."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus
        self.workspaces: set[int] = set()

    def clear(self) -> None:
        for address in sorted(self.workspaces):
            self.gpus.take(0, -8000 - address, address)
        self.workspaces.clear()

    def use(self, address: int) -> None:
        """Takes the workspace of a thread."""
        if address not in self.workspaces:
            self.workspaces.add(address)
            self.gpus.take(0, 8000 + address, address)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        self.use(91)
        self.gpus.take(0, 300, address=1)
        value: torch.Tensor = Square.apply(output, self)
        return value


class Square(torch.autograd.Function):
    """A sum of squares whose backward says what it takes."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, owner: Squares) -> torch.Tensor:
        ctx.owner = owner
        ctx.save_for_backward(output)
        return output.square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gpus = ctx.owner.gpus
        ctx.owner.use(92)
        gpus.take(0, 40, address=2)
        gpus.take(0, 8, address=3)
        gpus.take(0, -8, address=3)
        gpus.take(0, -300, address=1)
        return ctx.saved_tensors[0] * 2 * gradient, None


def test_a_loss_has_its_own_allocations_and_those_that_libraries_keep_in_each_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tangent goes where the caller drops it, of which the double is not told."""
    model = torch.nn.Linear(4, 5).train()
    graph = graph_of((model, ((torch.ones(2, 4),), {}), lambda output: output.sum()), "m")
    gpus = stand_in(monkeypatch)
    squares = Squares(gpus)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", squares.clear, raising=False)
    monkeypatch.setattr(
        loss_room, "make_tensor", lambda value, fill, _: make_tensor(value, fill, ON_CPU)
    )
    prepare: Callable[..., Any] = loss_room._LossRun.prepare

    def dropping(run: Any, arrived: Any = None) -> None:
        if run.tangents:
            gpus.take(0, -40, address=2)
        prepare(run, arrived)

    monkeypatch.setattr(loss_room._LossRun, "prepare", dropping)
    cost = measure_loss(graph, squares, device=torch.device("cuda", 0))
    assert cost.allocations == OpAllocations([300, 40, 8, -3, -1], [8091], [8092])
    assert (cost.peak, cost.net) == (348, 40)
    known = replace(cost, seconds=1.0, allocations=None)
    again = measure_loss(graph, squares, known, torch.device("cuda", 0))
    assert (again.seconds, again.allocations) == (1.0, cost.allocations)
    monkeypatch.undo()
    assert measure_loss(graph, lambda output: output.sum(), device=ON_CPU).allocations is None


def test_the_random_state_of_a_gpu_takes_no_bytes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies on the host; a save and a restore are those of the device that is named."""
    gpus = stand_in(monkeypatch)
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: asked.append(device))
    place = torch.device("cuda", 1)
    cost = measure_random_state(place)
    assert (cost.peak, cost.net) == (0, 0) and cost.seconds > 0
    assert set(asked) == {place} and gpus.current == 0


def test_half_of_the_cache_of_a_gpu_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    assert cache_bytes(torch.device("cuda", 1)) == 1 << 20


def test_operands_of_a_gpu_are_tried_on_the_host() -> None:
    graph = graph_of((torch.nn.Linear(4, 4).train(), ((torch.ones(2, 4),), {})), "m")
    op = next(op for op in graph.ops if "mm" in op.target)
    operands = {
        value: make_tensor(graph.values[value], lambda tensor: None, ON_CPU) for value in op.inputs
    }
    overload = resolve(op.target)
    tried = room._OpRun(graph, op, overload, operands, torch.device("cuda", 0), 0).on_host()
    assert {tensor.device for tensor in tried.operands.values()} == {ON_CPU}
    assert tried.regular_call()().shape == (2, 4)
