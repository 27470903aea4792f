"""How models fit on described cards: the numbers against hand computation and whole traces."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tightfit.__main__ import main
from tightfit.api import fit
from tightfit.api.fit import CardProblem, HostComputer
from tightfit.api.fit_graphs import (
    PROBE_BYTES,
    ConfiguredModel,
    FactoryModel,
    FitModel,
    StepGraphs,
    trace_step,
)
from tightfit.schemas.card_fit import CardFit, FrontierPoint, WayFit, WayName
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.combine.card_batches import (
    MAX_BATCH,
    BatchLine,
    doubles_sizes,
    largest_batch,
)
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.profile.roofline import count_flops
from tightfit.stages.report.fit_page import _build_plot
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.layer_extrapolation import IrregularLayersError, extrapolate_layers
from tightfit.stages.trace.layer_list import LayerList, find_layer_list
from tightfit.stages.trace.trace import trace

LAYERS, WIDTH, INNER, WORDS, TOKENS = 5, 32, 48, 100, 16
LLAMA = {
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
}
GPT2: dict[str, float] = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": 4}
GPT2 |= {"vocab_size": WORDS, "n_positions": 64}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
PARAMETERS = (
    2 * WORDS * WIDTH
    + WIDTH
    + LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * INNER + 2 * WIDTH)
)
"""Embedding and head, the last norm, and of each layer the attention (keys and values of half the
width), the gated layer and two norms."""


def write_card(path: Path, memory: int) -> Path:
    device = {"name": "cuda:0", "memory": memory, "bandwidth": 1e11, "latency": 1e-7}
    card = {"artifact": "tightfit.machine/1", "name": path.stem}
    path.write_text(json.dumps({**card, "devices": [{**device, "flops": {"float32": 1e12}}]}))
    return path


MEMORY = 40_000_000


@dataclass(frozen=True)
class Fitted:
    """What the command prints of a small model and card, the folder with its page, and the graphs
    that it traced."""

    found: dict[str, Any]
    folder: Path
    graphs: StepGraphs


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    folder = tmp_path_factory.mktemp("fit")
    card = write_card(folder / "card.json", MEMORY)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    words = ["fit", "--model", "transformers:llama", "--config", str(folder / "config.json")]
    words += ["--batch", "2", "--tokens", str(TOKENS), "--devices", str(card), "--jobs", "1"]
    printed, traced = io.StringIO(), []

    def recorded(source: FitModel, batch: int, workers: int) -> StepGraphs:
        traced.append(trace_step(source, batch, workers))
        return traced[0]

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(fit, "trace_step", recorded)
        assert main([*words, "--json", "--html", str(folder / "fit.html")]) == 0
    return Fitted(json.loads(printed.getvalue()), folder, traced[0])


@pytest.fixture
def graphs(fitted: Fitted) -> StepGraphs:
    """The step of a small model with two samples and with four."""
    return fitted.graphs


def source_of(kind: str = "llama", config: dict[str, Any] = LLAMA) -> ConfiguredModel:
    return ConfiguredModel(f"transformers:{kind}", config, TOKENS)


@dataclass(frozen=True)
class OneBatch(ConfiguredModel):
    """A model that is made for one batch only."""

    def varies_batch(self) -> bool:
        return False


def whole_trace(source: ConfiguredModel, batch: int) -> Graph:
    return trace(source.build(batch), source.name, probe_bytes=PROBE_BYTES, profiled=False)


def without_places(graph: Graph) -> Graph:
    return replace(graph, ops=[replace(op, source="") for op in graph.ops], guards="")


@pytest.mark.parametrize(("kind", "config"), [("llama", LLAMA), ("gpt2", GPT2)])
def test_the_graph_of_many_layers_is_that_of_a_whole_trace(
    kind: str, config: dict[str, Any], graphs: StepGraphs
) -> None:
    source = OneBatch(f"transformers:{kind}", config, TOKENS)
    found = graphs if kind == "llama" else trace_step(source, 2, 1)
    assert (found.layers, found.traced_layers) == (LAYERS, [2, 3])
    assert without_places(found.graph) == without_places(whole_trace(source, 2))


def batch_line(card: CardProblem, graphs: StepGraphs) -> BatchLine:
    assert graphs.pair is not None and doubles_sizes(*graphs.pair)
    one, two = graphs.pair
    step = card.step(one, "adamw", graphs.layer_path)
    return BatchLine(step, card.resized(step, two), graphs.pair_batch)


def test_sizes_at_another_batch_are_those_of_its_trace(tmp_path: Path, graphs: StepGraphs) -> None:
    card = card_problem(tmp_path, 10**9)
    line = batch_line(card, graphs)
    step, graph = line.step, whole_trace(source_of(), 3)
    found, traced = line.at(3), card.step(graph, "adamw", graphs.layer_path)
    assert found.graph.storages == graph.storages
    assert found.problem.storages == traced.problem.storages
    assert max(found.requests(step.eager)) == traced.eager.requested
    assert found.reserved_by(step.schedule(step.eager)) == traced.reserved(traced.eager)


def test_a_product_of_all_samples_is_on_no_straight_line(graphs: StepGraphs) -> None:
    def build(batch: int) -> Graph:
        model = _Pairs()
        built = BuiltModel(model, [((torch.randn(batch, 4),), {})], lambda loss: loss)
        return trace(built, "pairs")

    assert not doubles_sizes(build(2), build(4))
    assert not doubles_sizes(graphs.graph, replace(graphs.graph, ops=graphs.graph.ops[1:]))


class _Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return (x @ x.t()).exp().sum()


def test_the_largest_batch_is_by_the_run_that_grows_most() -> None:
    assert largest_batch([10, 30], [14, 40], 2, 100) == 16
    assert largest_batch([10, 30], [14, 40], 2, 29) == 1
    assert largest_batch([10, 30], [14, 40], 2, 9) == 0
    assert largest_batch([10, 10], [14, 10], 2, 9) == 0
    assert largest_batch([10], [10], 2, 10) == MAX_BATCH


def test_two_traces_that_differ_in_more_than_a_layer_are_refused(
    graphs: StepGraphs,
) -> None:
    assert graphs.pair is not None
    with pytest.raises(IrregularLayersError):
        extrapolate_layers(*graphs.pair, 2 * LAYERS)


def test_layers_that_differ_are_no_list_of_equal_ones() -> None:
    def model(*widths: int) -> nn.Module:
        return nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, width) for width in widths)})

    assert find_layer_list(model(4, 4, 4, 4, 4)) == LayerList("layers", 5)
    assert find_layer_list(model(4, 4, 4, 4, 8)) is None
    assert find_layer_list(model(4, 4)) is None


def test_bytes_are_those_of_a_hand_computation(fitted: Fitted) -> None:
    found, folder = fitted.found, fitted.folder
    assert found["parameters"] == PARAMETERS
    assert found["parameter_bytes"] == found["gradient_bytes"] == 4 * PARAMETERS
    assert found["state_bytes"] == 2 * 4 * PARAMETERS
    [card] = found["cards"]
    ways = {way["way"]: way for way in card["ways"]}
    assert all(way["fits"] for way in ways.values())
    assert ways["eager"]["slowdown"] == ways["plan"]["slowdown"] == 1.0
    assert ways["checkpoint"]["slowdown"] > 1.0
    assert 16 * PARAMETERS <= card["least_bytes"] <= card["frontier"][-1]["bytes"]
    assert card["least_offload_bytes"] < card["least_bytes"]
    page = (folder / "fit.html").read_text()
    assert "card" in page and 'class="frontier"' in page


def test_a_card_far_above_the_step_does_not_flatten_its_frontier() -> None:
    names: tuple[WayName, ...] = ("eager", "checkpoint", "plan", "offload")
    ways = [WayFit(name, True, 100 + number, 1.0) for number, name in enumerate(names)]
    points = [FrontierPoint(50, 1.5), FrontierPoint(100, 1.0)]
    for memory, lines in ((150, 1), (10_000, 0)):
        card = CardFit("card", memory, ways, 40, 30, points, None, [])
        plot = _build_plot(card)
        assert len(plot.budgets) == lines
        places = [mark.x for each in plot.series for mark in each.predicted]
        assert max(places) - min(places) > 30


def card_problem(folder: Path, memory: int) -> CardProblem:
    return CardProblem(
        "card", write_card(folder / "card.json", memory), HostComputer(10**9, 1e9, 1e9)
    )


def test_the_step_as_it_is_takes_what_the_simulator_finds(
    tmp_path: Path, graphs: StepGraphs
) -> None:
    step = card_problem(tmp_path, 10**9).step(graphs.graph, "adamw", graphs.layer_path)
    ops = [node.op for node in step.problem.nodes]
    played = simulate(step.graph, step.costs, lower_to_schedule(step.graph, step.costs, ops, False))
    inputs = 2 * 2 * TOKENS * 8
    fixed = step.resident - 3 * 4 * PARAMETERS - inputs
    assert 0 <= fixed < 1000  # buffers of the rotary embedding
    assert step.eager.requested == step.resident + played.peak
    assert step.layers == LAYERS
    assert step.checkpointed(0).requested == step.eager.requested
    assert step.checkpointed().requested < step.checkpointed(2).requested < step.eager.requested
    assert step.least_bytes <= step.least_plan.requested <= step.checkpointed().requested


def test_plans_are_what_the_simulator_finds(tmp_path: Path, graphs: StepGraphs) -> None:
    step = card_problem(tmp_path, 10**9).step(graphs.graph, "adamw", graphs.layer_path)
    assert len(step.plans) > 2
    for plan in step.plans:
        played = simulate(step.graph, step.costs, step.schedule(plan))
        assert plan.requested == step.resident + played.peak
        updates = sum(cost.seconds for cost in step.updates.values())
        assert plan.seconds == pytest.approx(played.seconds + updates)


def test_the_fewest_checkpoints_fit_and_one_less_does_not(
    tmp_path: Path, graphs: StepGraphs
) -> None:
    step = batch_line(card_problem(tmp_path, 10**9), graphs).at(400)
    least, most = step.reserved(step.checkpointed()), step.reserved(step.eager)
    assert least < most
    layers = step.least_recomputed_layers(most - 1)
    assert 0 < layers <= LAYERS
    assert (
        step.reserved(step.checkpointed(layers))
        < most
        <= step.reserved(step.checkpointed(layers - 1))
    )


def test_the_largest_batch_fits_and_one_more_does_not(fitted: Fitted) -> None:
    [card] = fitted.found["cards"]
    ways = {way["way"]: way["largest_batch"] for way in card["ways"]}
    assert 2 < ways["eager"] < ways["checkpoint"] <= ways["plan"]
    path = fitted.folder / "card.json"
    line = batch_line(CardProblem("card", path, HostComputer(10**9, 1e9, 1e9)), fitted.graphs)
    steps = line.step.schedule(line.step.eager)
    taken = [line.at(ways["eager"] + more).reserved_by(steps) for more in (0, 1)]
    assert taken[0] <= MEMORY < taken[1]


def test_a_card_that_is_too_small_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    graphs: StepGraphs,
) -> None:
    monkeypatch.setattr(fit, "trace_step", lambda *_: graphs)
    card = write_card(tmp_path / "card.json", 1000)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    words = ["fit", "--model", "transformers:llama", "--config", str(tmp_path / "config.json")]
    assert main([*words, "--tokens", "16", "--devices", str(card), "--jobs", "1"]) == 3
    said = capsys.readouterr()
    assert "fits on none of these cards: no plan takes less than" in said.err
    assert max(map(len, said.out.splitlines())) <= 80


class _Alike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(6):
            x = torch.relu(self.layers[number](x))
        return x.sum()


def build_numbered(batch: int) -> tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]:
    """A model that asks for each of its layers by number, so that it runs with no fewer."""
    return _Alike(), ((torch.randn(batch, 8),), {})


class _Experts(nn.Module):
    """Two experts with half of the rows each, by an operator of transformers' own."""

    def __init__(self) -> None:
        super().__init__()
        importlib.import_module("transformers.integrations.moe")
        self.weights = nn.Parameter(torch.randn(2, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([len(x) // 2, len(x)], dtype=torch.int32)
        return torch.ops.transformers.grouped_mm_fallback(x * 2, self.weights, ends).sum()


def build_experts() -> tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]:
    return _Experts(), ((torch.randn(6, 8, requires_grad=True),), {})


def test_experts_count_their_products() -> None:
    found = trace_step(FactoryModel(f"{__name__}:build_experts", {}), 6, 1).graph
    grouped = [op for op in found.ops if "grouped_mm" in op.target]
    product = 2 * 6 * 8 * 16
    assert [count_flops(found, op) for op in grouped] == [product, 2 * product]


def build_broken() -> None:
    raise ValueError("no such data")


def test_a_model_that_needs_all_of_its_layers_is_traced_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = write_card(tmp_path / "card.json", 10**6)
    words = ["fit", "--factory", f"{__name__}:build_numbered", "--batch", "3", "--json"]
    assert main([*words, "--devices", str(card), "--jobs", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layers"], found["parameters"]) == (0, 6 * 72)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "rtx9999"], "there is no described card 'rtx9999', use a100"),
        (["--model", "transformers:nothing"], "has no model type 'nothing'"),
        (["--model", "timm:resnet"], "expected transformers:KIND"),
        (["--tokens", "999"], "takes at most 64"),
        (["--config", "missing.json"], "cannot be read"),
        (["--host-memory", "50%"], "is a share"),
    ],
)
def test_wrong_options_are_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    card = write_card(tmp_path / "card.json", 10**9)
    options = {"--model": "transformers:llama", "--config": str(tmp_path / "config.json")}
    options |= {"--devices": str(card), "--jobs": "1", "--tokens": "16"}
    options |= dict(zip(words[::2], words[1::2], strict=True))
    assert main(["fit", *(word for pair in options.items() for word in pair)]) == 1
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_a_factory_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--factory", f"{__name__}:build_broken", "--devices", "t4"]) == 1
    assert "raises ValueError: no such data" in capsys.readouterr().err
