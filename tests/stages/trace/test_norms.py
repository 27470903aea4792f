"""Normalisations in half precision and under autocast give in a plan what they give in eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from stages.device.check import check_program
from tests.stages.generate.plans import compare, generated, recompute, traced

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
        check_program(graph, "graph")
        compare(generated(graph, tmp_path / "all"), built)
        compare(generated(graph, tmp_path / "some", recompute(graph, 1)), built)
