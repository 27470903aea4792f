"""Writes into parts of tensors round in a plan as they round in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import compare, generated, recompute, traced

GRUS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "rows of 48": (nn.GRU(64, 48), (2, 4, 64)),
    "rows of 17": (nn.GRU(16, 17, bidirectional=True), (2, 4, 16)),
    "a cell": (nn.GRUCell(33, 17), (5, 33)),
}

PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns": lambda x: x[:, :33],
    "every other": lambda x: x[:, ::2],
    "some rows of the transposed": lambda x: x.t()[:33],
    "a middle dimension": lambda x: x.view(6, 5, 13)[:, 1:4],
    "two gaps": lambda x: x.view(6, 5, 13)[:, :4, :11],
    "one of the split": lambda x: x.unsafe_chunk(2, 1)[1],
}


class Writes(nn.Module):
    """Writes twice into a part of a tensor, and reads the part and the whole."""

    def __init__(self, part: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 65)
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = self.layer(x)
        part = self.part(whole)
        part.add_(0.1).sigmoid_()
        return part.tanh().sum() + whole.exp().sum() * part.sum()


@pytest.mark.parametrize("name", GRUS)
def test_a_gru_of_any_size_is_that_of_eager(name: str, tmp_path: Path) -> None:
    model, shape = GRUS[name]
    graph, built = traced((model, ((torch.randn(shape).requires_grad_(),), {})))
    compare(generated(graph, tmp_path / "all"), built)
    compare(generated(graph, tmp_path / "some", recompute(graph, 1)), built)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_written_is_that_of_eager(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced((Writes(PARTS[name]), ((torch.randn(6, 7),), {})))
    compare(generated(graph, tmp_path / "all"), built)
