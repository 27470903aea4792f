"""Fused kernels are judged by their distance from float64, beside eager of the same layout."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.fused_kernels import ChannelsLastConvolutions, compare_with_eager

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Its first steps round far more on channels-last tensors: its gradients are sums over images
    that cancel in batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.one, self.two = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.one(self.first(x)))
        inner = torch.relu(self.two(self.second(inner)) + inner)
        return self.last(inner.mean((2, 3))).square().mean()


def built() -> BuiltModel:
    torch.manual_seed(0)
    return BuiltModel(Net().train(), [((IMAGES,), {})])


def traced(channels_last: bool) -> Graph:
    return trace(built(), "net", channels_last=channels_last)


def with_last_channels() -> nn.Module:
    """Convolutions of the model choose channels-last kernels, as ATen does for such weights."""
    model = built().model
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model


def test_channels_last_rounding_is_measured_beside_eager_of_that_layout() -> None:
    said, told = compare_with_eager(traced(True), built(), with_last_channels())
    assert said == ""
    assert "with channels-last convolutions" in told


def test_a_graph_that_has_no_such_convolutions_may_not_round_so() -> None:
    said, _ = compare_with_eager(traced(False), built(), with_last_channels())
    assert "4 times eager's are taken" in said


@pytest.mark.parametrize("name", ["first.weight", "two.weight", "last.bias"])
def test_another_number_is_refused_there_too(name: str) -> None:
    wrong = copy.deepcopy(with_last_channels())
    with torch.no_grad():
        wrong.get_parameter(name)[-1].mul_(1.0005).add_(2e-4)
    said, _ = compare_with_eager(traced(True), built(), wrong)
    assert "with channels-last convolutions, and 4 times eager's are taken" in said


def test_views_that_channels_last_tensors_do_not_have_are_copies() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3)
    with ChannelsLastConvolutions():
        made = convolution(IMAGES)
        flat = made.view(4, -1)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(flat, made.contiguous().view(4, -1))


class Turned(nn.Module):
    """Its output is complex."""

    def __init__(self, angle: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.angle = angle

    def forward(self, x: Tensor) -> Tensor:
        return torch.polar(self.weight * x, torch.full_like(x, self.angle))


def test_complex_outputs_are_compared() -> None:
    own = BuiltModel(Turned(0.5), [((torch.linspace(1, 2, 8),), {})])
    graph = trace(own, "turned")
    assert compare_with_eager(graph, own, Turned(0.5))[0] == ""
    assert "4 times eager's are taken" in compare_with_eager(graph, own, Turned(0.51))[0]
