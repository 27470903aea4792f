"""What layers store and write that a function of autograd runs again in the backward."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import built_of
from tests.stages.trace.test_backward_state import Model, block, checkpoints, runs_again
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.generate.repeated_backward import is_repeatable_forward
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError


class Counting(nn.Module):
    """A layer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


class Storing(nn.Module):
    """A layer that keeps its last input in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inputs = nn.Linear(8, 8), [torch.zeros(1)]

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.clear()
        self.inputs.append(x.detach())
        return self.layer(x)


def traced_model(layer: nn.Module, compute: Callable[[Any, Tensor], Any]) -> Graph:
    return trace(built_of((Model([layer], compute), ((torch.randn(3, 8),), {}))), "m")


def runs_once(m: Any, x: Tensor) -> Any:
    return m.blocks[0](x)


@pytest.mark.parametrize("compute", [checkpoints, runs_again])
@pytest.mark.parametrize(("layer", "place"), [(Counting, "calls"), (Storing, "inputs")])
def test_side_effects_of_layers_that_run_again_are_refused_by_name(
    layer: type[nn.Module], place: str, compute: Callable[[Any, Tensor], Any]
) -> None:
    with pytest.raises(
        ModelError, match=rf"changes blocks\.0\.{place}, and a function of autograd runs that layer"
    ):
        traced_model(layer(), compute)
    assert json.loads(traced_model(layer(), runs_once).guards)["guards"]["side_effects"]


@pytest.mark.parametrize("compute", [checkpoints, runs_once])
def test_a_backward_that_writes_buffers_runs_once(compute: Callable[[Any, Tensor], Any]) -> None:
    norm = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    assert is_repeatable_forward(traced_model(norm, compute)) is (compute is runs_once)
    assert is_repeatable_forward(traced_model(block(), compute))
