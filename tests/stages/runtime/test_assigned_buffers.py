"""Buffers that the forward assigns."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from tests.stages.generate.plans import generated, load_package, traced


class Remembers(nn.Module):
    """Puts its last hidden state in the place of a buffer."""

    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.layer(x) + self.state)
        self.state = hidden.detach()
        return hidden.sum()


def test_who_holds_what_stood_in_a_buffer_keeps_it(tmp_path: Path) -> None:
    model, x = Remembers(), torch.randn(4, 8)
    graph, _ = traced((model, ((x,), {})))
    generated(graph, tmp_path / "module")
    left = []
    for module in (copy.deepcopy(model), load_package(tmp_path / "module").load(model)):
        kept = [(module.state, module.state_dict()["state"])]
        for _ in range(2):
            module(x).backward()
            kept.append((module.state, module.state_dict()["state"]))
        left.append([tensor for pair in kept for tensor in pair])
    for mine, theirs in zip(*left, strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(left[1][0], left[1][2])
