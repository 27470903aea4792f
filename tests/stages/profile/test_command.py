from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from data import models
from tests.schemas.machine_descriptions import described
from tightfit.schemas.costs import ProfileDevice, op_cost_key, read_costs, read_profile_device
from tightfit.schemas.graph.training_graph import (
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    read_graph,
    write_graph,
)
from tightfit.stages.profile import command, measure
from tightfit.stages.profile.cost_library import distinct_op_variants
from tightfit.stages.profile.roofline import count_flops
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ArtifactError, ConfigError

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return trace(check_factory_result(models.gpt2(1, 32, 2, 50, 2, 8), "gpt2"), "gpt2")


@pytest.fixture
def graph_path(gpt2: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "TIMING_SECONDS", 0.0)
    write_graph(tmp_path / "graph.arrow", gpt2)
    return tmp_path / "graph.arrow"


def run(*words: object) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([str(word) for word in words]))


def test_parameters_too_small_to_be_offloaded_are_refused_before_anything_is_measured(
    graph_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measure_costs", None)
    words = ("--graph", graph_path, "--library", graph_path.parent, "--optimizer", "adamw")
    with pytest.raises(ConfigError, match="can be offloaded has 1,048,576 bytes or more, and"):
        run(*words, "--parameters", "offload", "--out", graph_path.parent / "costs.arrow")


def test_measured_costs_are_written_and_can_be_taken_from_the_file(graph_path: Path) -> None:
    folder = graph_path.parent
    run("--graph", graph_path, "--library", folder / "store", "--out", folder / "costs.arrow")
    costs = read_costs(folder / "costs.arrow")
    graph = read_graph(graph_path)
    assert costs.device.source == "measured"
    assert set(distinct_op_variants(graph)) < set(costs.rows)
    words = ("--graph", graph_path, "--source", "file", "--costs")
    run(*words, folder / "costs.arrow", "--out", folder / "same.arrow")
    assert read_costs(folder / "same.arrow").rows == costs.rows
    built = check_factory_result(models.gpt2(1, 16, 2, 50, 2, 8), "narrow")
    write_graph(folder / "narrow.arrow", trace(built, "narrow"))
    words = ("--graph", folder / "narrow.arrow", "--source", "file", "--costs")
    with pytest.raises(ArtifactError, match="lacks the cost of op"):
        run(*words, folder / "costs.arrow", "--out", folder / "none.arrow")
    assert not (folder / "none.arrow").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--machine", "h100"], "--machine: is for --source roofline, and costs of --source measu"),
        (["--costs", "costs.arrow"], "--costs: is for --source file, and costs of --source measu"),
        (["--source", "file", "--machine", "h100"], "--machine: is for --source roofline, and cos"),
    ],
)
def test_an_option_of_another_source_is_refused(
    graph_path: Path, words: list[str], sentence: str
) -> None:
    out = graph_path.parent / "costs.arrow"
    with pytest.raises(ConfigError, match=sentence):
        run("--graph", graph_path, "--library", graph_path.parent, *words, "--out", out)
    assert not out.exists()


def test_a_described_device_gives_costs_for_every_op(graph_path: Path) -> None:
    folder = graph_path.parent
    words = ("--graph", graph_path, "--source", "roofline", "--out", folder / "costs.arrow")
    run(*words, "--machine", described(folder / "gpu.json"))
    graph, costs = read_graph(graph_path), read_costs(folder / "costs.arrow")
    assert costs.device.name == "a GPU" and costs.device.source == "roofline"
    for op in graph.ops:
        if op.target == LOSS_TARGET:
            continue
        cost = costs.of(graph, op)
        assert cost.seconds == 0 if graph.is_view(op) else cost.seconds >= 1e-6
        assert cost.peak == cost.net
        for value in op.in_place:
            assert costs.of(graph, op, value).net < cost.net
    product = next(op for op in graph.ops if op.target == "aten.addmm.default")
    rows, inner = graph.values[product.inputs[1]].shape
    columns = graph.values[product.outputs[0]].shape[1]
    assert count_flops(graph, product) == 2 * rows * inner * columns
    slow = described(folder / "gpu.json", flops=1e6, latency=0)
    run(*words, "--machine", slow)
    slowest = read_costs(folder / "costs.arrow").rows[op_cost_key(graph, product, NO_VALUE)]
    assert slowest.seconds == pytest.approx(count_flops(graph, product) / 1e6)


@pytest.mark.parametrize("change", [{"flops": 0}, {"bandwidth": "fast"}, {"latency": -1}])
def test_a_wrong_description_is_named(graph_path: Path, change: dict[str, object]) -> None:
    folder = graph_path.parent
    description = described(folder / "gpu.json", **change)
    words = ("--graph", graph_path, "--source", "roofline", "--machine", description)
    with pytest.raises(ArtifactError, match=next(iter(change))):
        run(*words, "--out", folder / "costs.arrow")


def test_missing_options_are_named(graph_path: Path) -> None:
    words = ("--graph", graph_path, "--out", graph_path.parent / "costs.arrow")
    with pytest.raises(ConfigError, match="--library"):
        run(*words)
    with pytest.raises(ConfigError, match="--machine"):
        run(*words, "--source", "roofline")
    with pytest.raises(ConfigError, match="--machine cpu: is measured, and not described"):
        run(*words, "--source", "roofline", "--machine", "cpu")


def test_a_machine_of_the_checkout_is_found_by_its_name(graph_path: Path) -> None:
    out = graph_path.parent / "costs.arrow"
    run("--graph", graph_path, "--source", "roofline", "--machine", "t4", "--out", out)
    assert read_profile_device(out) == ProfileDevice(
        "cuda", "t4", "", 0, "roofline", 16_000_000_000
    )
    with pytest.raises(ArtifactError, match=r"tightfit\.costs/1 was expected"):
        read_profile_device(graph_path)


def labeled(rows: int = 4) -> tuple[Any, ...]:
    """A factory whose loss keeps a tensor."""
    labels = torch.arange(rows) % 3
    samples: tuple[Any, ...] = ((torch.randn(rows, 8),), {})
    return nn.Linear(8, 3), samples, lambda output: nn.functional.cross_entropy(output, labels)


def unlabeled(rows: int = 4) -> tuple[Any, ...]:
    """A factory whose loss keeps nothing."""
    return nn.Linear(8, 3), ((torch.randn(rows, 8),), {}), lambda output: output.square().mean()


@pytest.mark.parametrize("factory", [labeled, unlabeled])
def test_a_loss_may_keep_tensors(
    factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    write_graph(tmp_path / "graph.arrow", trace(check_factory_result(factory(), "f"), "f"))
    words: list[object] = ["--graph", tmp_path / "graph.arrow", "--library", tmp_path]
    words += ["--out", tmp_path / "costs.arrow"]
    with pytest.raises(ConfigError, match="--factory is needed to measure f: its step has a loss"):
        run(*words)
    words += ["--factory", f"tests.stages.profile.test_command:{factory.__name__}"]
    run(*words, "--arguments", '{"rows": 4}')
    costs = read_costs(tmp_path / "costs.arrow")
    loss = next(row for row in costs.rows.values() if row.target == LOSS_TARGET)
    assert loss.net == 4 * 3 * 4 + 8
    with pytest.raises(ConfigError, match="--arguments"):
        run(*words, "--arguments", "rows")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("aten.from_file.default", "takes no tensors"),
        ("aten.addmm.default", "refuses its arguments"),
    ],
)
def test_nothing_of_a_doctored_graph_runs(
    gpt2: Graph, graph_path: Path, target: str, sentence: str
) -> None:
    last = next(op for op in reversed(gpt2.ops) if op.target == "aten.sum.dim_IntList")
    ops = [replace(op, target=target) if op is last else op for op in gpt2.ops]
    write_graph(graph_path, replace(gpt2, ops=ops))
    folder = graph_path.parent
    with pytest.raises(ArtifactError, match=rf"graph\.arrow: op {last.id} .*{sentence}"):
        run("--graph", graph_path, "--library", folder / "store", "--out", folder / "costs.arrow")
    assert [path.name for path in folder.iterdir()] == ["graph.arrow"]
