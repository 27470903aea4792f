from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from data import models
from tightfit.schemas.costs import (
    Costs,
    OpCost,
    ProfileDevice,
    op_cost_key,
    read_costs,
    write_costs,
)
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph
from tightfit.stages.profile import measure
from tightfit.stages.profile.cost_library import (
    CostLibrary,
    device_digest,
    distinct_op_variants,
    open_cost_library,
)
from tightfit.stages.profile.loss import loss_library_key
from tightfit.stages.profile.profile import profile
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ArtifactError, ConfigError, ModelError

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "TIMING_SECONDS", 0.0)


def graph_of(made: tuple[Any, ...], name: str = "model") -> Graph:
    return trace(check_factory_result(made, name), name)


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return graph_of(models.gpt2(1, 32, 2, 50, 2, 8, dropout=0.1))


@pytest.fixture(scope="module")
def resnet() -> Graph:
    return graph_of(models.resnet("resnet10", 2, 32))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"logits": self.second(self.first(x).relu()), "name": "logits"}


def cross_entropy(output: dict[str, Any]) -> torch.Tensor:
    labels = torch.zeros(len(output["logits"]), dtype=torch.int64)
    return torch.nn.functional.cross_entropy(output["logits"], labels)


def classifier() -> tuple[Any, ...]:
    return Classifier(), ((torch.randn(4, 8),), {}), cross_entropy


@contextmanager
def library(tmp_path: Path) -> Iterator[CostLibrary]:
    with open_cost_library(tmp_path, describe_device("cpu")) as opened:
        yield opened


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_every_op_and_form_has_a_cost_and_leaves_its_outputs(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    graph: Graph = request.getfixturevalue(name)
    with library(tmp_path) as opened:
        costs = profile(graph, None, opened)
    for op in graph.ops:
        read = {graph.values[value].storage for value in op.inputs}
        made = {graph.values[value].storage for value in op.outputs if value != NO_VALUE} - read
        cost = costs.of(graph, op)
        assert cost.net == sum(graph.storages[storage] for storage in made), op.target
        assert cost.seconds > 0 or op.target == LOSS_TARGET
        for value in op.in_place:
            form = costs.of(graph, op, value)
            first = graph.storages[graph.values[op.outputs[0]].storage]
            assert form.net == cost.net - first and form.peak <= cost.peak
            assert op.inputs[form.in_place] == value
    assert any(op.in_place for op in graph.ops)
    assert len(costs.rows) == len(distinct_op_variants(graph)) + 1
    assert costs.random_state().net == 5056


def test_no_more_memory_than_the_largest_op_takes_with_its_operands(tmp_path: Path) -> None:
    graph = graph_of(models.gpt2(1, 64, 2, 600, 2, 64))
    with library(tmp_path) as opened:
        costs = profile(graph, None, opened)
    largest = 0
    for op in graph.ops:
        made = measure.op_footprint(replace(graph, ops=[]), replace(op, outputs=[]))
        largest = max(largest, made + costs.of(graph, op).peak)
    wanted = {op.id: {NO_VALUE, *op.in_place} for op, _ in distinct_op_variants(graph).values()}
    limit = max(measure.op_footprint(graph, op) for op in graph.ops)
    with memory_session("cpu") as running:
        for op_id, forms in wanted.items():
            op = graph.ops[op_id]
            if op.target == LOSS_TARGET:
                continue
            with running.section(str(op_id)), torch.no_grad():
                measured = _without_sessions(graph, op, forms, limit)
    tile = 4 * 65521
    for op_id in wanted:
        if graph.ops[op_id].target != LOSS_TARGET:
            assert running.section_usage(str(op_id)).peak <= largest + tile, graph.ops[op_id].target
    assert measured


def _without_sessions(graph: Graph, op: Any, forms: set[int], limit: int) -> list[Any]:
    """`measure_op` inside the profiler session of the test: sessions do not nest."""
    from tightfit.stages.torch_utils.memory_meter import MemoryUsage

    def measured(device: Any, call: Any) -> tuple[MemoryUsage, Any]:
        return MemoryUsage(measure.op_footprint(graph, op), 0, []), call()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "measure_call_memory", measured)
        return measure.measure_op(graph, op, forms, torch.device("cpu"), limit)


def test_what_is_known_is_not_measured_again(
    gpt2: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = gpt2
    with library(tmp_path) as opened:
        first = profile(graph, None, opened)
    calls: list[str] = []
    original = measure.measure_op

    def counted(graph: Graph, op: Any, *rest: Any) -> Any:
        calls.append(op.target)
        return original(graph, op, *rest)

    monkeypatch.setattr("tightfit.stages.profile.profile.measure_op", counted)
    with library(tmp_path) as opened:
        assert profile(graph, None, opened).rows == first.rows
    assert calls == []
    deeper = graph_of(models.gpt2(2, 32, 2, 50, 2, 8, dropout=0.1), "deeper")
    with library(tmp_path) as opened:
        both = profile(deeper, None, opened)
        assert len(calls) < 12 and set(both.rows) <= set(opened.costs.rows)
        assert set(first.rows) <= set(opened.costs.rows)
        calls.clear()
        again = profile(graph, None, opened, remeasure=True)
    assert len(calls) > 30 and set(again.rows) == set(first.rows)


def test_a_stored_cost_is_trusted_however_busy_the_machine_was(
    gpt2: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = measure.measure_op

    def counted(graph: Graph, op: Any, *rest: Any) -> Any:
        calls.append(op.id)
        return original(graph, op, *rest)

    with library(tmp_path) as opened:
        first = profile(gpt2, None, opened)
        monkeypatch.setattr("tightfit.stages.profile.profile.measure_op", counted)
        op = next(op for op in gpt2.ops if op.target == "aten.mm.default")
        busy = replace(first.of(gpt2, op), lost=0.5)
        opened.add([busy])
        assert profile(gpt2, None, opened).rows[busy.key] == busy and not calls
        assert profile(gpt2, None, opened, remeasure=True).rows[busy.key] != busy and calls


def test_an_error_keeps_what_was_measured_before(gpt2: Graph, tmp_path: Path) -> None:
    graph = gpt2
    last = graph.ops[-1]
    broken = replace(
        last,
        target="aten.mm.default",
        arguments='{"args":[],"kwargs":{}}',
        inputs=[],
        in_place=[],
    )
    bad = replace(graph, ops=[*graph.ops[:-1], broken])
    with library(tmp_path) as opened, pytest.raises(ModelError, match=rf"op {last.id} .*mm"):
        profile(bad, None, opened)
    with library(tmp_path) as opened:
        assert len(opened.costs.rows) > 30


def test_profiling_leaves_the_random_state_alone(gpt2: Graph, tmp_path: Path) -> None:
    graph = gpt2
    state = torch.get_rng_state()
    with library(tmp_path) as opened:
        profile(graph, None, opened)
    assert torch.equal(state, torch.get_rng_state())


def test_a_loss_is_measured_with_what_it_holds(tmp_path: Path) -> None:
    made = classifier()
    graph = graph_of(made)
    with library(tmp_path) as opened:
        costs = profile(graph, made[2], opened)
    loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
    cost = costs.of(graph, loss)
    tangent = 4 * 4 * 5
    assert cost.net == tangent + 4 + 4  # the loss and its gradient stay until the step has ended
    assert cost.peak > cost.net and cost.seconds > 0


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return y.exp(), y.sigmoid()


@pytest.mark.parametrize(
    ("loss", "net"),
    [
        (lambda outs: outs[0].sum() + outs[1].exp().sum(), 8 * 16 * 4 + 8),
        (lambda outs: outs[1].sum() + outs[0].exp().sum(), 8 * 16 * 4 + 8),
        (lambda outs: (outs[0] + outs[1]).tanh().sum(), 8 * 16 * 4 + 8),
        (lambda outs: (outs[0] + outs[1]).sum(), 8),
    ],
)
def test_gradients_of_a_loss_are_not_copied(loss: Any, net: int, tmp_path: Path) -> None:
    """One that is expanded, or that two outputs share, arrives at a planned module as it is."""
    graph = graph_of((Two().train(), ((torch.randn(8, 16),), {}), loss))
    with library(tmp_path) as opened:
        costs = profile(graph, loss, opened)
    assert costs.of(graph, next(op for op in graph.ops if op.target == LOSS_TARGET)).net == net


def test_a_loss_needs_the_factory_and_must_work(tmp_path: Path) -> None:
    graph = graph_of(classifier(), "classifier")
    with library(tmp_path) as opened:
        with pytest.raises(ConfigError, match="classifier has a loss"):
            profile(graph, None, opened)
        with pytest.raises(ModelError, match="loss of classifier"):
            profile(graph, lambda output: output["absent"], opened)


def scaled(hidden: int) -> Any:
    def loss(output: dict[str, Any]) -> torch.Tensor:
        logits = output["logits"]
        return (logits.unsqueeze(-1) * torch.ones(hidden)).exp().mean()

    return loss


def test_losses_of_one_label_and_shape_have_costs_of_their_own(tmp_path: Path) -> None:
    graph = graph_of((*classifier()[:2], scaled(2)))
    key = op_cost_key(graph, next(op for op in graph.ops if op.target == LOSS_TARGET))
    peaks = []
    for loss in (cross_entropy, scaled(2), scaled(500), scaled(2)):
        with library(tmp_path) as opened:
            peaks.append(profile(graph, loss, opened).rows[key].peak)
    assert len(set(peaks)) == 3 and peaks[1] == peaks[3]
    assert peaks[2] > 4 * 4 * 5 * 500


def test_a_loss_that_is_the_same_keeps_its_costs(tmp_path: Path) -> None:
    graph = graph_of((*classifier()[:2], scaled(2)))
    digests = []
    for _ in range(2):
        with library(tmp_path / "store") as opened:
            digests.append(write_costs(tmp_path / "costs.arrow", profile(graph, scaled(2), opened)))
    assert digests[0] == digests[1]


def test_what_a_loss_takes_is_measured_even_where_its_code_is_known(tmp_path: Path) -> None:
    graph = graph_of((*classifier()[:2], scaled(2)))
    loss = scaled(2)
    known = loss_library_key(graph, loss)
    assert known is not None
    key = op_cost_key(graph, next(op for op in graph.ops if op.target == LOSS_TARGET))
    with library(tmp_path) as opened:
        honest = profile(graph, loss, opened).rows[key]
        opened.add([replace(opened.costs.rows[known], peak=1 << 40)])
        assert profile(graph, loss, opened).rows[key].peak == honest.peak
        assert opened.costs.rows[known].peak == honest.peak


def test_libraries_of_devices_are_apart(tmp_path: Path) -> None:
    here = describe_device("cpu")
    assert here.type == "cpu" and here.threads == 1 and here.name and here.source == "measured"
    other = replace(here, threads=7)
    assert device_digest(here) != device_digest(other)
    with open_cost_library(tmp_path, other) as opened:
        opened.costs = Costs([], other)
        path = opened.path
    Path(path).write_bytes(b"")
    with pytest.raises(ArtifactError, match=str(path.name)), open_cost_library(tmp_path, other):
        pass


def test_machines_that_share_a_store_measure_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row that comes first stays, since later runs find it, and no row is lost."""
    device = describe_device("cpu")
    known, other, third = (
        OpCost(f"{key:064}", "aten.mm.default", NO_VALUE, 1.0, 0.0, 1, 1) for key in range(3)
    )
    with open_cost_library(tmp_path, device) as here:
        here.add([known])
        monkeypatch.setattr("socket.gethostname", lambda: "another")
        with open_cost_library(tmp_path, device) as there:
            there.add([replace(known, seconds=7.0), replace(other, seconds=7.0)])
        here.add([replace(other, seconds=9.0), third])
    assert here.costs.rows == read_costs(here.path).rows
    assert {key: row.seconds for key, row in here.costs.rows.items()} == {
        known.key: 7.0, other.key: 7.0, third.key: 1.0
    }  # fmt: skip


def _hold(store: str, device: ProfileDevice, ready: Any) -> None:
    with open_cost_library(store, device):
        ready.set()
        time.sleep(0.5)


def test_two_profiles_take_turns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    device = describe_device("cpu")
    holder = context.Process(target=_hold, args=(str(tmp_path), device, ready))
    holder.start()
    assert ready.wait(10)
    with open_cost_library(tmp_path, device):
        holder.join(5)
        assert holder.exitcode == 0
    assert "waiting for another profile" in capfd.readouterr().err
