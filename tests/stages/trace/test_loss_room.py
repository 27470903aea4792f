"""The room for a loss outside of the plan is what the usual losses take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from data import models
from tests.stages.generate.plans import built_of, traced
from tightfit.schemas.graph.loss_room import usual_loss_room, with_loss_room
from tightfit.schemas.graph.training_graph import LOSS_SCALAR_BYTES, Graph, check_graph
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ArtifactError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ROWS, CLASSES = 64, 100
LABEL_BYTES = 8 * ROWS


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, labels)


def copied_labels(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, labels.clone(), label_smoothing=0.1)


def float32_copy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.float(), labels)


def autocast(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.cross_entropy(output, labels)


def mean_square(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output, torch.zeros_like(output))


def layer_graph(dtype: torch.dtype, outputs: int = 1) -> Graph:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, CLASSES, dtype=dtype) for _ in range(outputs))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(layer(x) for layer in self.layers)

    sample: Any = (torch.randn(ROWS, 8, dtype=dtype),), {}
    return trace(built_of((Layers().train(), sample)), "layers")


def bytes_beside(losses: list[Loss], dtype: torch.dtype) -> int:
    """What the sum of losses, one for each output, takes beside the outputs and their gradients."""
    outputs = [torch.randn(ROWS, CLASSES).to(dtype).requires_grad_() for _ in losses]
    labels = torch.randint(CLASSES, (ROWS,))
    with memory_session("cpu") as running, running.section("loss"):
        total = sum(loss(each, labels) for loss, each in zip(losses, outputs, strict=True))
        assert isinstance(total, torch.Tensor)
        total.backward()
    received = sum(each.untyped_storage().nbytes() for each in outputs)
    return running.section_usage("loss").peak - received


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "loss", [cross_entropy, copied_labels, float32_copy, autocast, mean_square]
)
def test_a_usual_loss_fits_into_the_room(loss: Loss, dtype: torch.dtype) -> None:
    assert bytes_beside([loss], dtype) <= usual_loss_room(layer_graph(dtype))


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        (cross_entropy, torch.float32),
        (cross_entropy, torch.float64),
        (float32_copy, torch.bfloat16),
        (autocast, torch.float16),
    ],
)
def test_the_room_is_no_larger_than_a_loss_needs(loss: Loss, dtype: torch.dtype) -> None:
    room = usual_loss_room(layer_graph(dtype))
    assert room - bytes_beside([loss], dtype) <= LABEL_BYTES + LOSS_SCALAR_BYTES


def test_losses_of_several_outputs_fit() -> None:
    room = usual_loss_room(layer_graph(torch.float32, outputs=3))
    assert room - bytes_beside([cross_entropy] * 3, torch.float32) >= 0
    assert room < 3 * usual_loss_room(layer_graph(torch.float32))


def test_a_model_that_computes_its_loss_needs_no_room() -> None:
    made = models.gpt2_loss(layers=1, width=32, heads=2, vocabulary=50, batch=2, tokens=8)
    assert usual_loss_room(trace(built_of(made[:2]), "own")) == 0
    assert trace(built_of(made), "planned", loss_room=None).loss_room == 0


def test_a_room_is_part_of_the_graph() -> None:
    graph, _ = traced(models.gpt2(1, 32, 2, 50, 2, 8))
    assert graph.loss_room == 0
    roomy = with_loss_room(graph, 1000)
    assert roomy.loss_room == 1000 and roomy.caller_owned_values() == graph.caller_owned_values()
    check_graph(roomy, "graph")
    assert with_loss_room(graph, None).loss_room == usual_loss_room(graph) > 0


@pytest.mark.parametrize("room", [-1, 1 << 62])
def test_a_room_that_no_loss_takes_is_refused(room: Any) -> None:
    graph, _ = traced(models.gpt2(1, 32, 2, 50, 2, 8))
    with pytest.raises(ArtifactError, match="no such room"):
        check_graph(with_loss_room(graph, room), "graph")
