"""Models whose inputs differ in sizes, and what PyTorch's captures fix of some."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tightfit.schemas.graph.dynamic_inputs import DynamicDimension, DynamicInputs
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.torch_utils.sample_sizes import resize_samples

TEXT = (DynamicDimension("batch", 2, 4), DynamicDimension("tokens", 2, 24))
BATCH = (DynamicDimension("batch", 2, 6),)


def built_dynamic(
    made: Sequence[Any],
    dimensions: tuple[DynamicDimension, ...] = TEXT,
    label: str = "model",
    axes: Sequence[int] | None = None,
) -> BuiltModel:
    """What a factory returned, with the first axes of each input dynamic, at the largest sizes."""
    model, sample, *rest = made
    leaves = range(len(sample[0]) + len(sample[1])) if axes is None else axes
    named = {axis: one.name for axis, one in enumerate(dimensions)}
    dynamic = DynamicInputs(dimensions, dict.fromkeys(leaves, named))
    built = BuiltModel(model, [sample], rest[0] if rest else None, label=label, dynamic=dynamic)
    return resize_samples(built, dynamic.largest)


class Perceptron(nn.Module):
    """Rows of numbers, normalized over the batch, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.drop(self.norm(self.first(x).tanh()).sigmoid()))
        return out


class Parity(nn.Module):
    """Numbers that are the same at all odd sizes: a factor, and two shifts by about half."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x) * (1 + x.shape[1] % 2)
        half, other = x.shape[1] // 2, (x.shape[1] - 1) // 2
        return x.roll(half, 1) + 2 * x.roll(other, 1) * x


class Halved(nn.Module):
    """Images of any height and width, which a pool and a stride halve."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(nn.functional.max_pool2d(self.first(x).relu(), 2))
        return out.mean((2, 3))


class Pointwise(nn.Module):
    """Convolutions of single pixels, for which PyTorch has other kernels below 16 images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x).tanh())
        return out


class Convolutions(nn.Module):
    """A small residual network on images of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.second(x)).relu()
        out: torch.Tensor = self.last(nn.functional.max_pool2d(x, 2).mean((2, 3)))
        return out


class Weighted(nn.Module):
    """A linear layer between two uses of the number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(self.scale(self.layer(x)).tanh())
        return out


class Scaled(Weighted):
    """Computes with floats of the number of tokens, and interpolates to twice as many."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        x = x * x.shape[1] ** -0.5 / (x.shape[1] / 2) + 1.0 / x.shape[0]
        larger = nn.functional.interpolate(x[:, None], scale_factor=(2, 1), mode="bilinear")
        return larger[:, 0, ::2] + nn.functional.interpolate(x, size=2 * x.shape[2])[..., 1::2]


class SquareRoot(Weighted):
    """Divides by the square root of the number of tokens, in Python."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x / math.sqrt(x.shape[1])


class Shifted(Weighted):
    """Compares each token with the one before it."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:] * x[:, :-1]


class Strided(Weighted):
    """A convolution with a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 4, 3, stride=2)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return out


class Cached(Weighted):
    """Keeps positions by the number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[int, torch.Tensor] = {}

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] not in self.positions:
            self.positions[x.shape[1]] = torch.arange(x.shape[1])
        return x * self.positions[x.shape[1]].unsqueeze(-1)


class Constant(Weighted):
    """Makes a tensor of the number of tokens."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(x.shape[1])


class Loop(Weighted):
    """Runs a loop over tokens."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, at] * at for at in range(x.shape[1])], 1)


class Branch(Weighted):
    """Goes another way with many tokens."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() if x.shape[1] > 16 else x


class Square(Weighted):
    """Goes another way with as many tokens as rows."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == x.shape[1] else x.sin()


class OneSize(Weighted):
    """Goes another way with a number of tokens that few look at."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] == 4001 else x.sin()


class Halves(Weighted):
    """Reads the first half of an even number of tokens."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], 2, x.shape[1] // 2, 4).flip(1).reshape(x.shape)


class Shrinking(Weighted):
    """Makes a tensor that is the smaller the more tokens there are."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        rest = self.layer.weight.new_ones(64 - x.shape[1], 4).cumsum(0).tanh()
        return x + (rest * self.layer.bias).sum()


def tokens(kind: type[nn.Module]) -> tuple[nn.Module, Any]:
    """A model with a sample of (batch, tokens, 4) numbers."""
    torch.manual_seed(0)
    return kind().train(), ((torch.randn(3, 7, 4),), {})
