"""Normalizations of tensors in another order than a contiguous one round in a plan as in eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import compare, generated, keep_all, recompute, traced
from tightfit.schemas.graph.recompute_variants import find_recompute_values


class Between(nn.Module):
    """A normalization of a tensor with its last dimension moved to the second, and a linear layer
    of the result moved back."""

    def __init__(self, norm: nn.Module, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = norm
        self.last = nn.Linear(width, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = self.norm(self.first(x).movedim(-1, 1))
        return torch.log_softmax(self.last(moved.movedim(1, -1)), -1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(8), (6, 40, 8)),
        (nn.BatchNorm2d(8), (2, 5, 9, 8)),
        (nn.BatchNorm3d(8), (2, 3, 4, 5, 8)),
        (nn.GroupNorm(2, 8), (6, 40, 8)),
        (nn.GroupNorm(2, 8), (2, 5, 9, 8)),
        (nn.InstanceNorm1d(8, affine=True), (6, 40, 8)),
        (nn.LayerNorm(40), (6, 40, 8)),
    ],
)
def test_a_plan_has_the_bits_of_eager(
    norm: nn.Module, shape: tuple[int, ...], training: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Between(norm, shape[-1]).train(training)
    graph, built = traced((model, ((torch.randn(shape).requires_grad_(),), {})))
    compare(generated(graph, tmp_path / "all"), built)
    for seed in range(3):
        compare(generated(graph, tmp_path / f"some{seed}", recompute(graph, seed, 0.9)), built)


@pytest.mark.parametrize(("shape", "short"), [((6, 40, 8), False), ((2, 5, 9, 8), True)])
def test_a_sequence_is_no_image_with_its_channels_last(shape: tuple[int, ...], short: bool) -> None:
    """PyTorch computes it by another formula than by scale and shift."""
    norm = nn.BatchNorm1d(8) if len(shape) == 3 else nn.BatchNorm2d(8)
    graph, _ = traced((Between(norm, 8), ((torch.randn(shape),), {})))
    [op] = [graph.op(op) for op in keep_all(graph) if "batch_norm_legit" in graph.op(op).target]
    assert (find_recompute_values(graph, op) is not None) == short
