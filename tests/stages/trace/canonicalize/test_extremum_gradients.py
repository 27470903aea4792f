"""The backward of the largest and the smallest element gives eager's zeros, whatever its sign."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import compare, generated, recompute, traced

EXTREMA: dict[str, Callable[[Tensor], Tensor]] = {
    "max": torch.max,
    "min": torch.min,
    "turned": lambda x: x.t().max(),
    "half": lambda x: x.bfloat16().max(),
    "ties": lambda x: x.sign().max() + (x * 0).min(),
}


class Extremum(nn.Module):
    """An extremum with a sign, so that its gradient has either."""

    def __init__(self, extremum: Callable[[Tensor], Tensor], sign: float) -> None:
        super().__init__()
        self.extremum, self.sign = extremum, sign

    def forward(self, x: Tensor) -> Tensor:
        return self.extremum(x * 1.0) * self.sign


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", EXTREMA)
def test_the_gradient_of_an_extremum_has_the_bits_of_eager(
    name: str, sign: float, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    x = torch.randn(4, 5, requires_grad=True)
    graph, built = traced((Extremum(EXTREMA[name], sign), ((x,), {})))
    compare(generated(graph, tmp_path / "module", recompute(graph, 1, 1.0)), built)


def test_a_product_of_the_forward_stays_one() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mask = (x > 0).logical_or(x.isnan())
            return mask * (x.sum() / mask.sum())

    graph, _ = traced((Masked(), ((torch.randn(4, requires_grad=True),), {})))
    forward = [op.target for op in graph.ops if op.phase == "forward"]
    assert "aten.mul.Tensor" in forward and "aten.masked_fill.Tensor" not in forward
