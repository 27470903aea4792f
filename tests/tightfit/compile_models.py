"""Models whose graphs are compiled within a budget."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTH, CLASSES = 256, 64, 16


class Layer(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.dropout(self.down(hidden))


class Layers(nn.Module):
    """Residual layers and logits; with `broken`, a graph break between the second and third."""

    def __init__(self, dropout: float = 0.0, broken: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[1](self.layers[0](x))
        if self.broken:
            torch._dynamo.graph_break()
        return self.head(self.layers[3](self.layers[2](x)))


class Convolutions(nn.Module):
    """Convolutions with and without strides, whose library copies what it is given."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(4, 64, 1), (64, 64, 1), (64, 64, 2), (64, CLASSES, 2)]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, s, padding=1) for a, b, s in sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(4, 4, 32, 32)
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x.permute(0, 2, 3, 1).reshape(ROWS, CLASSES)


@torch.library.custom_op("tightfit_tests::add_noise", mutates_args=())
def add_noise(x: Tensor) -> Tensor:
    """Draws random numbers, without the tag that says so."""
    return x * torch.rand_like(x)


add_noise.register_fake(torch.empty_like)
add_noise.register_autograd(lambda context, gradient: gradient)


class Noise(nn.Module):
    """The custom operator on values that are cheap to compute again."""

    def forward(self, x: Tensor) -> Tensor:
        return add_noise(x.tanh())


class Centered(nn.Module):
    """Layers that take a running mean from their inputs and update it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.frozen(x - self.mean)
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.5)
        return self.trained(hidden.sin())


class MixedTypes(nn.Module):
    """Layers whose outputs are multiplied by tensors of other types."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x).relu()
            x = x * (x > 0.1) if number % 2 else x + x.bfloat16()
        return self.head(x)


class MaskedAttention(nn.Module):
    """Layers of attention with one mask, which inductor would compute again at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(len(x))
        far = (places - places[:, None]).abs() > len(x) // 2
        for layer in self.layers:
            query, key, value = layer(x).chunk(3, dim=-1)
            x = x + (query @ key.T).masked_fill(far, -1e9).softmax(-1) @ value
        return self.head(x)


class Auxiliary(Layers):
    """Logits of many classes, and a second output: a scalar or a vector."""

    def __init__(self, scalar: bool) -> None:
        super().__init__()
        self.head, self.scalar = nn.Linear(WIDTH, 32 * CLASSES), scalar

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x), x.square().mean() if self.scalar else x[:2].mean(0)
