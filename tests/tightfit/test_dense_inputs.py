"""Tensors in other layouts than that of ordinary ones are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tightfit
from tests.stages.generate.plans import compare, generated, recompute, traced

KINDS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "rows": (lambda: torch.eye(4).to_sparse_csr(), "an input is of the layout torch.sparse_csr"),
    "coordinates": (lambda: torch.eye(4).to_sparse(), "an input is of the layout torch.sparse_coo"),
    "mkldnn": (lambda: torch.eye(4).to_mkldnn(), "an input is of the layout torch._mkldnn"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),
        "an input is nested",
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8),
        "an input is quantized",
    ),
}


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).sin()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_other_layouts_are_refused(kind: str, tmp_path: Path) -> None:
    make, said = KINDS[kind]
    with pytest.raises(tightfit.ModelError, match=f"Product: {said}, which a plan does not hold"):
        tightfit.plan(Product(), (make(),), store=tmp_path)


def test_a_buffer_of_another_layout_is_named(tmp_path: Path) -> None:
    model = Product()
    model.register_buffer("mask", torch.eye(4).to_sparse())
    with pytest.raises(tightfit.ModelError, match=r"mask is of the layout torch\.sparse_coo"):
        tightfit.plan(model, (torch.eye(4),), store=tmp_path)


def test_tensors_without_elements_are_planned(tmp_path: Path) -> None:
    class Unpacked(nn.Module):
        def forward(self, x: Tensor, pivots: Tensor) -> Tensor:
            return torch.lu_unpack(x * 1.0, pivots)[1].sin()

    x = torch.zeros(0, 4, 4, requires_grad=True)
    pivots = torch.zeros(0, 4, dtype=torch.int32)
    graph, built = traced((Unpacked(), ((x, pivots), {})))
    compare(generated(graph, tmp_path / "module", recompute(graph, 1)), built)
