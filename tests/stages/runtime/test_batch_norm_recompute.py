"""What runs again by a shorter form gives the bits of its first run."""

from __future__ import annotations

import pytest
import torch

from tightfit.stages.runtime.operators import recompute_batch_norm

SHAPES = [
    (2, 1),
    (16, 33),
    (4, 64, 7),
    (3, 17, 9, 5),
    (4, 256, 28, 28),
    (1, 3, 2, 3, 4),
    (2, 8, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_a_batch_norm_repeat(shape: tuple[int, ...], layout: str, epsilon: float) -> None:
    torch.manual_seed(0)
    operand = torch.randn(shape) * 3 + 5
    if layout == "channels_last" and len(shape) == 4:
        operand = operand.contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(shape[1]), torch.randn(shape[1]) * 10
    kept = torch.zeros(shape[1]), torch.ones(shape[1])
    first, mean, invstd, *_ = torch.ops.aten._native_batch_norm_legit_functional(
        operand, weight, bias, *kept, True, 0.1, epsilon
    )
    again = recompute_batch_norm(operand, weight, bias, mean, invstd)
    assert torch.equal(again, first)
    assert again.stride() == first.stride()
