"""What a forward does around its layer: what a plan would not do, and what it would."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.attention
from torch import nn
from torch.utils.checkpoint import checkpoint

COUNT = 0
SEEN: list[int] = []
NOISE = random.Random(3)


class Model(nn.Module):
    """A linear layer around what `does` does."""

    def __init__(self, does: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.counter = 0
        self.history: list[Any] = []
        self.cache: dict[str, Any] = {}
        self.settings = SimpleNamespace(steps=0, scale=2.0)
        self.own = random.Random(5)
        self.numbers = np.random.default_rng(5)
        self.bytes = bytearray(1)
        self.array = np.zeros(2)
        self.register_buffer("mean", torch.zeros(3))
        self.does = does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self, self.layer(x))


def counts(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.counter += 1
    return x * self.counter


def keeps(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.last = x
    return x


def appends(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.history.append(x.shape[0])
    return x


def fills(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.cache["x"] = x
    return x


def counts_below(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.settings.steps += 1
    return x


def counts_globally(self: Any, x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return x


def appends_globally(self: Any, x: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return x


def deletes(self: Any, x: torch.Tensor) -> torch.Tensor:
    del self.counter
    return x


def registers(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.layer.register_buffer("seen", torch.zeros(1))
    return x


def draws(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def draws_uniform(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * random.uniform(1, 2)


def draws_numpy(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())


def draws_own(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * self.own.random()


def draws_global(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * NOISE.random()


def draws_own_numpy(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * float(self.numbers.random())


def seeds(self: Any, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return x + torch.rand_like(x)


def saves(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return x.tanh()


def sets_default(self: Any, x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    made = x + torch.ones(3)
    torch.set_default_dtype(torch.float32)
    return made


def without_cudnn(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.backends.cudnn.flags(enabled=False):
        return x.tanh()


def is_deterministic(self: Any, x: torch.Tensor) -> torch.Tensor:
    torch.use_deterministic_algorithms(True)
    try:
        return x * 2
    finally:
        torch.use_deterministic_algorithms(False)


def freezes(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.layer.weight.requires_grad_(False)
    return x


def clamps(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.layer.weight.data.clamp_(-0.1, 0.1)
    return self.layer(x)


class Meter:
    """A counter without a dictionary."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def counts_in_a_slot(self: Any, x: torch.Tensor) -> torch.Tensor:
    METERS[0].count += 1
    return x


def counts_in_bytes(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.bytes[0] += 1
    return x


def counts_in_an_array(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.array[0] += 1.0
    return x


def reads_a_gradient(self: Any, x: torch.Tensor) -> torch.Tensor:
    gradient = self.layer.weight.grad
    return x if gradient is None else x * gradient.norm()


def drops_a_gradient(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.layer.weight.grad = None
    return x


METERS = [Meter()]

REFUSED = [
    (reads_a_gradient, "reads .grad of a tensor at "),
    (drops_a_gradient, "sets .grad of a tensor at "),
    (counts_in_a_slot, "changes the global METERS[0] at tests"),
    (counts_in_bytes, "changes bytes at tests"),
    (counts_in_an_array, "changes array at tests"),
    (clamps, "to its parameter 'layer.weight', which is trained"),
    (freezes, "sets requires_grad of its parameter 'layer.weight'"),
    (counts, "sets counter at tests/stages/trace/forwards.py:"),
    (deletes, "sets counter at tests"),
    (registers, "layer"),
    (draws, "draws from Python's random at tests/stages/trace/forwards.py:"),
    (draws_uniform, "draws from Python's random at tests"),
    (draws_numpy, "draws from NumPy's random at tests"),
    (draws_own, "draws from own at tests"),
    (draws_global, "draws from the global NOISE at tests"),
    (draws_own_numpy, "draws from numbers"),
    (seeds, "calls torch.manual_seed at tests"),
    (saves, "uses saved_tensors_hooks at tests"),
    (sets_default, "sets the default dtype at tests"),
    (is_deterministic, "sets the use of deterministic algorithms at tests"),
    (without_cudnn, "sets torch.backends.cudnn.enabled at tests"),
]


REPLAYED = [
    (keeps, "assign", "last"),
    (appends, "append", "history"),
    (fills, "assign", "cache['x']"),
    (counts_below, "count", "settings.steps"),
    (counts_globally, "count", "COUNT"),
    (appends_globally, "append", "the global SEEN"),
]


def sets_the_same(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.counter = 0
    self.history = self.history
    return x


def assigns_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
    return x - self.mean


def checkpoints(self: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(torch.tanh, x, use_reentrant=False)


def offloads(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return x.tanh()


def uses_torch(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x) + nn.functional.dropout(x)


def attends(self: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]


ALLOWED = [attends, sets_the_same, assigns_buffer, checkpoints, offloads, uses_torch]
