"""Normalizations in half precision and under autocast give in a plan what they give in eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import compare, generated, recompute, traced
from tightfit.stages.torch_utils.graph_check import check_graph_program

NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(8),
    "batch in evaluation": lambda: nn.BatchNorm2d(8).eval(),
    "batch without statistics": lambda: nn.BatchNorm2d(8, track_running_stats=False),
    "batch without weights": lambda: nn.BatchNorm2d(8, affine=False),
    "layer": lambda: nn.LayerNorm([8, 8, 8]),
    "group": lambda: nn.GroupNorm(2, 8),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    "root mean square": lambda: nn.RMSNorm([8, 8, 8]),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("half", [False, True], ids=["autocast", "half"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_lower_precision(name: str, half: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), NORMS[name](), nn.ReLU(), nn.Conv2d(8, 4, 3)
    )
    images = torch.randn(2, 3, 8, 8)
    if half:
        model, images = model.bfloat16(), images.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not half):
        graph, built = traced((model, ((images,), {})))
        check_graph_program(graph, "graph")
        compare(generated(graph, tmp_path / "all"), built)
        compare(generated(graph, tmp_path / "some", recompute(graph, 1)), built)


class Attended(nn.Module):
    """A group norm of what lies as rows of channels, in a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm, self.last = nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.mix(x.view(1, 8, 16).transpose(1, 2)).transpose(1, 2).reshape(1, 8, 4, 4)
        return self.last(self.norm((rows + x) / 2).relu())


def test_a_group_norm_of_one_image_in_rows_reads_a_copy(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced((Attended(), ((torch.randn(1, 8, 4, 4),), {})))
    check_graph_program(graph, "graph")
    norm = next(op for op in graph.ops if op.target == "aten.native_group_norm.default")
    back = next(op for op in graph.ops if op.target == "aten.native_group_norm_backward.default")
    assert norm.inputs[0] in back.inputs
    compare(generated(graph, tmp_path / "all"), built)
    compare(generated(graph, tmp_path / "some", recompute(graph, 1)), built)
