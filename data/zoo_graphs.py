"""Models whose graphs are no chains of blocks: small, PyTorch's own layers, random weights.

Factories as those of `data.models`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from data.models import Sample

Factory = tuple[nn.Module, Sample]


class Layers(nn.Module):
    """nn.LSTM, and a head on its last output."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(width, width, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        """Takes (steps, batch, width), returns (batch, 10)."""
        head: Tensor = self.head(self.layers(sequence)[0][-1])
        return head


class Cells(nn.Module):
    """A cell of an LSTM in a loop of Python, and a head on its last state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, width)
        self.head = nn.Linear(width, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        """Takes (steps, batch, inputs), returns (batch, 10)."""
        state: Any = None
        for step in sequence:
            state = self.cell(step, state)
        head: Tensor = self.head(state[0])
        return head


class UNet(nn.Module):
    """Levels of two convolutions that halve the resolution, and back up with skips."""

    def __init__(self, dimensions: int, channels: int, levels: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(levels)]
        convolution, norm, pool, self.mode = {
            2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, "bilinear"),
            3: (nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d, "trilinear"),
        }[dimensions]

        def double(taken: int, given: int) -> nn.Module:
            layers: list[nn.Module] = []
            for before in (taken, given):
                layers += [convolution(before, given, 3, padding=1), norm(given), nn.ReLU()]
            return nn.Sequential(*layers)

        before = [1, *widths]
        self.down = nn.ModuleList(map(double, before, widths))
        self.pool = pool(2)
        pairs = zip(widths[:0:-1], widths[-2::-1], strict=True)
        self.up = nn.ModuleList(double(below + skip, skip) for below, skip in pairs)
        self.head = convolution(channels, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Takes (batch, 1, size, ...), returns (batch, 2, size, ...)."""
        skips: list[Tensor] = []
        for number, layers in enumerate(self.down):
            image = layers(self.pool(image) if number else image)
            skips.append(image)
        image = skips.pop()
        for layers in self.up:
            larger = nn.functional.interpolate(image, scale_factor=2, mode=self.mode)
            image = layers(torch.cat([larger, skips.pop()], 1))
        head: Tensor = self.head(image)
        return head


class Siamese(nn.Module):
    """One tower on two images; returns the distance of what it makes of them."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Takes two batches of images, returns (batch,)."""
        return nn.functional.pairwise_distance(self.tower(one), self.tower(other))


def lstm(steps: int = 200, width: int = 64, layers: int = 2, batch: int = 8) -> Factory:
    """nn.LSTM, an operator a layer."""

    model = Layers(width, layers)
    return model.train(), ((torch.randn(steps, batch, width),), {})


def cells(steps: int = 200, width: int = 64, batch: int = 8) -> Factory:
    """A cell of an LSTM in a loop of Python."""
    return Cells(width, width).train(), ((torch.randn(steps, batch, width),), {})


def transformer(
    layers: int = 6, width: int = 64, heads: int = 4, batch: int = 4, tokens: int = 32
) -> Factory:
    """nn.Transformer with as many layers in the encoder as in the decoder, and its dropout."""
    model = nn.Transformer(width, heads, layers, layers, 4 * width, batch_first=True)
    taken = (torch.randn(batch, tokens, width), torch.randn(batch, tokens, width))
    return model.train(), (taken, {})


def unet(
    dimensions: int = 2, channels: int = 16, levels: int = 4, batch: int = 2, size: int = 64
) -> Factory:
    """A U-Net in two or three dimensions."""
    image = torch.randn(batch, 1, *[size] * dimensions)
    return UNet(dimensions, channels, levels).train(), ((image,), {})


def siamese(batch: int = 4, size: int = 64) -> Factory:
    """A ResNet-18 on two images."""
    from data.models import resnet

    tower, (images, _) = resnet("resnet18", batch=batch, size=size)
    return Siamese(tower).train(), ((images[0], torch.randn_like(images[0])), {})
