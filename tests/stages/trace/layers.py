"""Small modules of layers and operators that a trace must get right. All are factories."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.stages.trace.modules import Made


class Slicing(nn.Module):
    """Writes to slices, an output that is a strided view, einsum, topk."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        y = x @ self.weight
        y[:, 0] = 0
        y = y + self.bias
        z = y.clone()
        z.add_(1)
        return torch.einsum("ab,cb->ac", y, z).topk(2).values, y.view(-1)[::2]


def slicing() -> Made:
    return Slicing(), ((torch.randn(3, 4),), {})


class Spectral(nn.Module):
    """Complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=4)


def spectral() -> Made:
    return Spectral(), ((torch.randn(2, 4, 4),), {})


def images() -> Made:
    """Layers of image models besides batch normalization, in channels-last layout."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.SiLU(inplace=True),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.PReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    return model.train(), ((x,), {})


def dropout(p: float, dtype: str) -> Made:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(p)).to(getattr(torch, dtype))
    return model.train(), ((torch.randn(9, 64, dtype=getattr(torch, dtype)),), {})


def recurrent() -> Made:
    return nn.LSTM(4, 5, 2, batch_first=True).train(), ((torch.randn(2, 3, 4),), {})


def checkpointed() -> Made:
    from data.models import gpt2

    model, sample = gpt2(1, 32, 2, 50, 2, 8)
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    return model, (sample[0], {"output_hidden_states": True})
