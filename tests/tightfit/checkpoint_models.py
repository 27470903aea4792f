"""A small model of equal blocks, and steps of it."""

from __future__ import annotations

import copy
import gc

import torch
from torch import Tensor, nn

import tightfit

WIDTH, ROWS = 32, 256


class ResidualBlock(nn.Module):
    """A feed-forward block with a residual sum."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(self.drop(torch.tanh(self.up(self.norm(x))))))


class BlockModel(nn.Module):
    """Blocks between two linear layers."""

    def __init__(self, dropout: float = 0.0, blocks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(16, WIDTH)
        self.layers = nn.ModuleList([ResidualBlock(dropout) for _ in range(blocks)])
        self.leave = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.leave(x)


def sample(rows: int = ROWS) -> Tensor:
    """Inputs of so many rows."""
    return torch.linspace(-1, 1, rows * 16).reshape(rows, 16)


def squared_mean(output: Tensor) -> Tensor:
    """The loss."""
    return (output**2).mean()


def run_step(model: nn.Module, x: Tensor) -> Tensor:
    """One forward and backward from a fixed seed, the output held; gives the loss."""
    torch.manual_seed(3)
    output = model(x)
    loss = squared_mean(output)
    loss.backward()
    return loss.detach()


def step_bits(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Loss and gradients of one step."""
    model.zero_grad()
    loss = run_step(model, x)
    found = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        gradient = parameter.grad
        found.append(getattr(gradient, "_local_tensor", gradient).clone())
    model.zero_grad()
    return [loss, *found]


def equal_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether all tensors are equal."""
    return all(map(torch.equal, first, second)) and len(first) == len(second)


def step_peak(model: nn.Module, x: Tensor, repeats: int = 1) -> int:
    """The exact peak of one step, of several the one after which the fewest bytes are left: the
    profiler misses what threads of gloo free."""
    usages = []
    run_step(model, x)
    for _ in range(repeats):
        model.zero_grad()
        gc.collect()
        with tightfit.memory_session("cpu") as session, session.section("step"):
            run_step(model, x)
        usages.append(session.section_usage("step"))
    model.zero_grad()
    return min(usages, key=lambda usage: usage.net).peak


def policy_of(model: nn.Module, budget: str | int) -> tightfit.ActivationCheckpointPolicy:
    """The policy for the model's step."""
    return tightfit.checkpoint_policy(model, (sample(),), budget=budget, loss=squared_mean)


def with_policy(model: nn.Module, policy: tightfit.ActivationCheckpointPolicy) -> nn.Module:
    """A copy of a model with a policy."""
    return policy.apply(copy.deepcopy(model))
