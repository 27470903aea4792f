"""Small modules, each with one thing that a trace must get right. All are factories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

Made = tuple[Any, ...]


class Structured(nn.Module):
    """Keyword arguments, constants in and out, nested and None outputs, one tensor given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.tensor(2.0)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor, n: int, *, mask: Any = None, flag: bool = True) -> Any:
        y = self.linear(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]) * self.scale * n + self.frozen
        with torch.no_grad():
            plain = y * 2
        if mask is not None:
            y = y.masked_fill(mask, float("-inf")).clamp(min=-1e9)
        nested = (x.argmax(-1), 3, [y.t(), y], y[1:], plain)
        return {"y": y, "none": None, "nested": nested, "twice": y, "input": x, "label": "text"}


def structured() -> Made:
    inputs = (torch.randn(3, 4, requires_grad=True), 2)
    mask = torch.tensor([True, False, True, False])
    return Structured().train(), (inputs, {"mask": mask, "flag": True})


class Transposed(nn.Module):
    """Batch normalization of a transposed tensor: fake and real strides differ."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(self.first(x).transpose(1, 2))
        return self.last(y.transpose(1, 2)), y.reshape(-1), y.permute(2, 0, 1)


def transposed() -> Made:
    return Transposed(), ((torch.randn(4, 5, 6),), {})


class Normalized(nn.Module):
    """Batch normalization in training, in evaluation, and called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fixed = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.convolution(x)).relu()
        return self.head(self.norm(self.fixed(x)).mean((2, 3)))


def normalized() -> Made:
    model = Normalized()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.fixed.eval()
    return model, ((torch.randn(2, 3, 8, 8),), {})


class Watching(nn.Module):
    """Uses the running mean that the forward has just made, and reads it again later."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        y = y - self.norm.running_mean
        return self.norm(y) * self.norm.running_var


def watching() -> Made:
    return Watching(), ((torch.randn(5, 4),), {})


class Counting(nn.Module):
    """A buffer that is read before and after it is written, also by the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.average: torch.Tensor
        self.register_buffer("average", torch.ones(4))
        self.register_buffer("unused", torch.ones(2))

    def forward(self, x: torch.Tensor) -> Any:
        old = self.average
        before = self.linear(x) * old
        self.average = self.average * 0.5 + x.detach().mean(0)
        return before * self.average + self.average, old.view(2, 2), self.average


def counting() -> Made:
    return Counting(), ((torch.randn(3, 4, requires_grad=True),), {})


class Tied(nn.Module):
    """Two names for one weight, used as an embedding and as a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.shift = nn.Parameter(torch.zeros(2, 3, 6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens) + self.shift)


def tied() -> Made:
    return Tied(), ((torch.randint(0, 10, (2, 3)),), {})


class Shared(nn.Module):
    """Gradients that are one tensor, that are expanded, or that have other strides than theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(3, 4))
        self.two = nn.Parameter(torch.randn(3, 4))
        self.column = nn.Parameter(torch.randn(4, 3).t())
        self.cube = nn.Parameter(torch.randn(2, 3, 4).permute(1, 2, 0))
        self.row = nn.Parameter(torch.randn(3, 4))
        self.halves = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> Any:
        left, right = (x * self.row + self.halves).chunk(2, -1)
        return (
            x + self.one + self.two,
            (x * 2) + self.column,
            self.cube.sum(),
            self.row.sum(),
            torch.cat([right, left], -1).sin(),
        )


def shared() -> Made:
    return Shared(), ((torch.randn(3, 4),), {})


class Noisy(nn.Module):
    """Dropout, a draw that nothing uses, and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        x = nn.functional.dropout(self.linear(x), 0.5, self.training)
        return nn.functional.dropout(x + torch.randn_like(x), 0.3, False)


def noisy() -> Made:
    return Noisy().train(), ((torch.randn(5, 4),), {})


class Heads(nn.Module):
    """Three outputs, of which a loss may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.used = nn.Linear(4, 3)
        self.unused = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(x).tanh()
        return {"used": self.used(hidden), "unused": self.unused(hidden), "hidden": hidden}


def heads() -> Made:
    target = torch.tensor([0, 1, 2])

    def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
        entropy = nn.functional.cross_entropy(output["used"], target)
        return entropy + 0.1 * output["hidden"].t().square().sum()

    return Heads(), ((torch.randn(3, 4),), {}), loss


def summed() -> Made:
    """The loss sends back one number, expanded."""
    return nn.Linear(4, 3), ((torch.randn(3, 4),), {}), torch.sum


class Mixed(nn.Module):
    """Automatic mixed precision inside the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            x = torch.nn.functional.gelu(self.first(x))
        return self.last(x.float())


def mixed() -> Made:
    return Mixed(), ((torch.randn(3, 4),), {})


class Exposing(nn.Module):
    """Returns its parameter and a view of it, and is given one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor, again: torch.Tensor) -> Any:
        return x @ self.weight + again, self.weight, self.weight.t()


def exposing() -> Made:
    x = torch.randn(3, 4)
    return Exposing(), ((x, x), {})


class Reversal(torch.autograd.Function):
    """Gradient reversal: its backward is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return -0.5 * gradients[0]


class Pythonic(nn.Module):
    """Python in the backward: a function of its own, and a hook of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).tanh()
        hidden.register_hook(lambda gradient: gradient * 3)
        return self.last(Reversal.apply(hidden))


def pythonic() -> Made:
    return Pythonic(), ((torch.randn(3, 4),), {})


class Stepping(nn.Module):
    """A buffer that is written in place, whose new value the backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.mul_(1.5)
        return self.linear(x) * self.scale.view(1, 4).clone() + self.linear(x * self.scale.sum())


def stepping() -> Made:
    return Stepping(), ((torch.randn(3, 4),), {})


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Record:
    pair: Pair
    label: str


class Naming(nn.Linear):
    """Is given and returns named tuples and dataclasses."""

    def forward(self, given: Record) -> Record:  # type: ignore[override]
        y = super().forward(given.pair.left) * given.pair.right
        return Record(Pair(y, y.square()), "done")


def naming() -> Made:
    return Naming(4, 4), ((Record(Pair(torch.randn(3, 4), torch.randn(4)), "x"),), {})


class Twice(nn.Linear):
    """Uses its weight three times."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(super().forward(x)).tanh())


def twice() -> Made:
    return Twice(4, 4), ((torch.randn(3, 4, requires_grad=True),), {})
