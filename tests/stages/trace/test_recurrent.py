"""Recurrent layers and instance norms give in a plan what they give in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import compare, generated, recompute, traced
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.stages.runtime.operators import RNN_LAYER, RNN_WORKSPACE
from tightfit.stages.torch_utils.graph_check import check_graph_program


class Frozen(nn.Module):
    """A recurrent layer whose weights are not trained, below one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 5).requires_grad_(False)
        self.head = nn.Linear(5, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(tokens)[0])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 5),
    "lstm of two layers": lambda: nn.LSTM(
        4, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3
    ),
    "lstm without bias": lambda: nn.LSTM(4, 5, bias=False),
    "lstm with projections": lambda: nn.LSTM(4, 5, proj_size=3),
    "lstm in evaluation": lambda: nn.LSTM(4, 5).eval(),
    "frozen lstm": Frozen,
    "gru": lambda: nn.GRU(4, 5),
    "gru of two layers": lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True, dropout=0.3),
    "rnn": lambda: nn.RNN(4, 5),
    "rnn with relu": lambda: nn.RNN(4, 5, 2, nonlinearity="relu", batch_first=True),
}


def check(model: nn.Module, args: tuple[Any, ...], path: Path) -> Graph:
    graph, built = traced((model, (args, {})))
    check_graph_program(graph, "graph")
    compare(generated(graph, path / "all"), built)
    compare(generated(graph, path / "some", recompute(graph, 1)), built)
    return graph


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MODELS)
def test_recurrent_layers_are_those_of_eager(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(MODELS[name](), (torch.randn(3, 2, 4),), tmp_path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_and_inputs_that_are_given_get_their_gradients(
    layer: type[nn.Module], dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    hidden: Any = torch.randn(1, 2, 5, dtype=dtype).requires_grad_()
    if layer is nn.LSTM:
        hidden = (hidden, torch.randn(1, 2, 5, dtype=dtype).requires_grad_())
    tokens = torch.randn(3, 2, 4, dtype=dtype).requires_grad_()
    check(layer(4, 5).to(dtype), (tokens, hidden), tmp_path)


def test_the_workspace_of_an_lstm_has_the_size_that_it_really_has(tmp_path: Path) -> None:
    graph = check(nn.LSTM(16, 32), (torch.randn(10, 8, 16),), tmp_path)
    [layer] = [op for op in graph.ops if op.target == RNN_LAYER]
    assert layer.outputs[RNN_WORKSPACE] != NO_VALUE
    workspace = graph.values[layer.outputs[RNN_WORKSPACE]]
    weights = [weight.detach() for weight in nn.LSTM(16, 32).parameters()]
    state = torch.zeros(8, 32)
    real = torch.ops.aten.mkldnn_rnn_layer.default(
        torch.randn(10, 8, 16),
        *weights,
        state,
        state,
        False,
        [],
        2,
        32,
        1,
        True,
        False,
        False,
        True,
    )[RNN_WORKSPACE]
    assert real.untyped_storage().nbytes() == graph.storages[workspace.storage] > 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("tracking", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_instance_norms_are_those_of_eager(
    dimensions: int, tracking: bool, affine: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    kind = getattr(nn, f"InstanceNorm{dimensions}d")
    model = kind(4, affine=affine, track_running_stats=tracking)
    check(model, (torch.randn(3, 4, *[5] * dimensions).requires_grad_(),), tmp_path)
