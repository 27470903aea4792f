"""A model for tests, importable without the stages."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Small(nn.Module):
    """Normalization, dropout, a keyword argument and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0, mask: Any = None) -> Any:
        hidden = self.drop(self.norm(self.first(x)).relu())
        hidden = self.middle(hidden).tanh() * scale
        if mask is not None:
            hidden = hidden * mask
        return {"logits": self.last(hidden), "hidden": hidden}
