"""Convolutions on channels-last tensors: what they read, and what the caller sees of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.stages.trace import eager_comparison
from tests.stages.trace.eager_comparison import check_against_eager
from tightfit.schemas.graph.training_graph import Graph, GraphValue, Op
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.trace import trace


class Net(nn.Module):
    """Convolutions with a norm between them; `way` says what comes out."""

    def __init__(self, way: str = "maps") -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.last, self.way = nn.Conv2d(4, 4, 3), way

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        made: Tensor = self.last(self.norm(self.first(x)).relu())
        if self.way == "rows":
            return made.flatten(1)
        return (made, made[:, :2]) if self.way == "views" else made


def built(way: str) -> BuiltModel:
    torch.manual_seed(0)
    return BuiltModel(Net(way).train(), [((torch.randn(2, 3, 8, 8),), {})])


def total(output: Tensor) -> Tensor:
    return output.square().sum()


def last(value: GraphValue) -> bool:
    like = torch.empty_strided(value.shape, value.strides, device="meta")
    return like.is_contiguous(memory_format=torch.channels_last)


def convolutions(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.target.startswith("aten.convolution")]


@pytest.mark.parametrize("way", ["maps", "rows"])
def test_convolutions_read_channels_last_and_the_caller_sees_none_of_it(way: str) -> None:
    plain, graph = (trace(built(way), "net", channels_last=on) for on in (False, True))
    for op in convolutions(graph):
        operands = op.inputs[: 2 if op.phase == "backward" else 1]
        assert all(last(graph.values[value]) for value in operands)
    for one, other in zip(graph.outputs, plain.outputs, strict=True):
        assert graph.values[one.value].strides == plain.values[other.value].strides
    for gradient in graph.gradients:
        assert graph.values[gradient.gradient].strides == graph.values[gradient.value].strides


def test_the_program_does_what_eager_does_with_channels_last(tmp_path: Path) -> None:
    """Eager takes the form of its input along, and gives its output in it."""
    [((x,), _)] = built("maps").samples
    given = replace(
        built("maps"), samples=[((x.to(memory_format=torch.channels_last),), {})], loss=total
    )
    graph = trace(given, "net", channels_last=True)
    assert [op.target for op in graph.ops] == [op.target for op in trace(given, "net").ops]
    check_against_eager(graph, given, tmp_path / "graph.arrow")


class Mixed(nn.Module):
    """Norms, random numbers and what else has a layout of its own between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.group = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.drop, self.maps = nn.Dropout(0.3), nn.Dropout2d(0.3)
        self.middle, self.layer = nn.Conv2d(8, 8, 3, padding=1), nn.LayerNorm(8)
        self.up, self.last = nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.group(self.first(x)).sigmoid())
        x = self.layer((self.maps(self.middle(x)) + x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = x.flatten(2).softmax(-1)
        x = (weights @ x.flatten(2).transpose(1, 2)).square().mean(-1)[..., None, None] * self.up(x)
        made: Tensor = self.last(nn.functional.max_pool2d(x, 2)).roll(1, 2).cumsum(3)
        return made


def test_what_depends_on_a_layout_is_given_that_of_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    given = BuiltModel(Mixed().train(), [((torch.randn(2, 3, 8, 8),), {})], loss=total)
    graph = trace(given, "net", channels_last=True)
    assert any(op.target == "aten.native_group_norm_backward.default" for op in graph.ops)
    monkeypatch.setattr(eager_comparison, "equal", close)
    check_against_eager(graph, given, tmp_path / "graph.arrow")


def close(mine: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_outputs_in_one_memory_keep_their_layout() -> None:
    plain, graph = (trace(built("views"), "net", channels_last=on) for on in (False, True))
    assert graph == plain
