from __future__ import annotations

from torch import Tensor, nn


class Wave(nn.Module):
    """A group in the forward, and one in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(x)
        made: Tensor = self.last(inner.sigmoid() * inner.tanh() * 0.5)
        return made
