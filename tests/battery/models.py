"""Small models of all kinds, each a matter of milliseconds a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).tanh()).sigmoid())


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.mix, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.head(self.norm(functional.gelu(self.mix(self.embedding(tokens)))))
        found: dict[str, Any] = {"logits": logits}
        if labels is not None:
            found["loss"] = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return found


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.two, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm1(self.one(x)))
        x = functional.relu(self.norm2(self.two(x)) + x, inplace=True)
        return self.head(functional.max_pool2d(x, 2).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Heads(nn.Module):
    """Two heads on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 12), nn.SiLU(), nn.Linear(12, 12), nn.Dropout(0.2))
        self.left, self.right = nn.Linear(12, 3), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x)
        return self.left(hidden), self.right(hidden).softmax(-1)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.leaky_relu(self.first(x), 0.2))


class Several(nn.Module):
    """Several inputs: nested, by keyword, a number and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, pair: dict[str, Tensor], *, mask: Tensor, scale: float) -> Tensor:
        mixed = self.one(x) * self.two(pair["a"]).sigmoid() + pair["b"]
        return mixed.masked_fill(mask, 0.0) * scale


class Structured(nn.Module):
    """Nested outputs with views, whole numbers, constants and an input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.linear(x).tanh()
        nested = (y.argmax(-1), 3, [y.t(), y], y[1:])
        return {"y": y, "none": None, "nested": nested, "twice": y, "input": x, "label": "text"}


class Counter(nn.Module):
    """A buffer that is read before and after it is written, also by the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.average: Tensor
        self.calls: Tensor
        self.register_buffer("average", torch.ones(8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        before = self.linear(x) * self.average.clone()
        self.calls += 1
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return (before * self.average.clone()).tanh()


class Shown(nn.Module):
    """Returns the buffer that it has written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        self.mean.copy_(y.detach().mean(0))
        return y - self.mean, self.mean


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.cells, self.head = kind(8, 8, num_layers=2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


class Reverse(torch.autograd.Function):
    """Gradient reversal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Tensor:
        return -0.5 * gradient[0]


class Adversarial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.task, self.domain = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x).relu()
        return self.task(hidden), self.domain(Reverse.apply(hidden))


class Hooking(nn.Module):
    """Changes a gradient by a hook that its forward registers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x).tanh()
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return self.two(hidden)


LEVEL = 1.5


class Attributes(nn.Module):
    """Reads attributes of all kinds in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.plain = [nn.Linear(8, 8).requires_grad_(False)]
        self.scale, self.flag, self.shift = 2.0, True, torch.full((8,), 0.5)
        self.options = {"gain": 0.5}
        self.activation: Any = torch.tanh
        held = [3.0]
        self.held = held
        self.closure = lambda x: x * held[0]

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.one(x) * self.scale + self.shift) * self.options["gain"]
        y = y + self.plain[0](x) * LEVEL
        if self.flag:
            y = self.closure(y)
        return self.two(y)


class Normed(nn.Module):
    """Layers with constants: eps, momentum, slopes, rates."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.batch = nn.LayerNorm(8), nn.BatchNorm1d(8)
        self.drop, self.slope = nn.Dropout(0.3), nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.drop(self.slope(self.batch(self.norm(self.one(x))))))


class Square(nn.Module):
    """`sqrt` of what can be zero, in a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.one(x)
        return {"y": y.tanh(), "length": (self.two(x) * 0).square().sum(-1).sqrt()}


class InPlace(nn.Module):
    """Views and writes in place, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 12), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.one(x).chunk(3, -1)
        a = a.clone()
        a += b
        a.mul_(c.sigmoid())
        a[:, 0] = 0.0
        return self.two(a.relu_())


class Random(nn.Module):
    """Draws in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y = y + 0.1 * torch.randn_like(y)
        keep = torch.bernoulli(torch.full_like(y, 0.7))
        y = torch.where(torch.rand(y.shape) > 0.2, y * keep, y)
        return self.two(y[torch.randperm(len(y))])


class PythonRandom(nn.Module):
    """Skips a layer by Python's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        import random

        y = self.one(x).tanh()
        return self.two(y) * random.random()


class Counting(nn.Module):
    """Counts its calls in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.one(x).tanh() * self.calls


class Depends(nn.Module):
    """What it does depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x).tanh() if float(x[0, 0]) > 0 else self.two(x).tanh()


class Embedded(nn.Module):
    """Bags of embeddings, sorting and picking."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode="max")
        self.last = nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        x = self.bag(rows)
        values, places = x.sort(-1)
        return self.last(values.gather(1, places)), places.topk(2).values


class Instance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(3, 4, 3)
        self.norm, self.group = nn.InstanceNorm1d(4, affine=True), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.group(functional.elu(self.norm(self.one(x))))


class Prune(nn.Module):
    """A weight that a parametrization makes, and one with weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.two = nn.Linear(8, 8)
        nn.utils.parametrizations.orthogonal(self.two)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).tanh())


class Inside(nn.Module):
    """A part, which may be planned itself, between two layers."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.one, self.part, self.two = nn.Linear(8, 8), part, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.part(self.one(x)).tanh())


class Checkpointed(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        hidden: Any = checkpoint(self.first, x, use_reentrant=False)
        return self.last(self.second(hidden.tanh()))
