"""Functions of autograd that run layers again in their backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import built_of, compare, generated, recompute, traced
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError


class Again(torch.autograd.Function):
    """Gives the gradients of a layer and of its parameters."""

    @staticmethod
    def forward(ctx: Any, layer: Any, x: Tensor, *parameters: Tensor) -> Any:
        ctx.layer, ctx.parameters = layer, parameters
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        return None, *torch.autograd.grad(y, [x, *ctx.parameters], gradient)


class Checkpoint(torch.autograd.Function):
    """As DeepSpeed's and Megatron's: gradients of parameters are added by a backward()."""

    @staticmethod
    def forward(ctx: Any, layer: Any, keeps_state: bool, x: Tensor) -> Any:
        ctx.layer = layer
        ctx.state = torch.get_rng_state() if keeps_state else None
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        if ctx.state is not None:
            present = torch.get_rng_state()
            torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.layer(x)
        if ctx.state is not None:
            torch.set_rng_state(present)
        torch.autograd.backward(y, gradient)
        return None, None, x.grad


class Reversible(torch.autograd.Function):
    """Finds the inputs of its blocks from what they gave."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Any) -> Tensor:
        one, other = x.chunk(2, -1)
        with torch.no_grad():
            for first, second in blocks:
                one = one + first(other)
                other = other + second(one)
        ctx.blocks, ctx.given = blocks, torch.cat([one, other], -1).detach()
        return ctx.given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (one, other), (of_one, of_other) = ctx.given.chunk(2, -1), gradient.chunk(2, -1)
        for first, second in reversed(ctx.blocks):
            with torch.enable_grad():
                one = one.detach().requires_grad_()
                made = second(one)
                torch.autograd.backward(made, of_other)
            other, of_one = (other - made).detach(), of_one + one.grad
            with torch.enable_grad():
                other.requires_grad_()
                made = first(other)
                torch.autograd.backward(made, of_one)
            one, of_other = (one - made).detach(), of_other + other.grad
        return torch.cat([of_one, of_other], -1), None


class Adjoint(torch.autograd.Function):
    """Goes back along the steps of Euler's method, as odeint_adjoint does."""

    @staticmethod
    def forward(ctx: Any, field: Any, y: Tensor, times: Tensor, *parameters: Tensor) -> Tensor:
        path = [y]
        with torch.no_grad():
            for one, other in torch.stack([times[:-1], times[1:]], 1):
                path.append(path[-1] + (other - one) * field(path[-1]))
        ctx.field, ctx.parameters = field, parameters
        ctx.save_for_backward(times, torch.stack(path))
        return path[-1].clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        times, path = ctx.saved_tensors
        totals = [torch.zeros_like(parameter) for parameter in ctx.parameters]
        for number in range(len(times) - 1, 0, -1):
            with torch.enable_grad():
                y = path[number].detach().requires_grad_()
                made = ctx.field(y)
            found = torch.autograd.grad(made, (y, *ctx.parameters), gradient, allow_unused=True)
            step = times[number] - times[number - 1]
            gradient = gradient + step * found[0]
            parts = zip(totals, found[1:], strict=True)
            totals = [total + step * part for total, part in parts]
        return None, gradient, None, *totals


class CheckpointOfAll(torch.autograd.Function):
    """As fairscale's: a tensor that is made for it alone has its backward run."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, layer: Any, *tensors: Tensor) -> Any:
        ctx.layer, ctx.state = layer, torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return layer(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        tensors = [one.detach().requires_grad_(one.requires_grad) for one in ctx.saved_tensors]
        present = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.layer(*tensors)
        torch.set_rng_state(present)
        torch.autograd.backward([y], [gradient])
        return None, None, *(one.grad for one in tensors)


def block(p: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(p), nn.Linear(16, 8))


class Model(nn.Module):
    """A layer, and blocks that a function runs."""

    def __init__(self, blocks: list[nn.Module], compute: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.blocks, self.compute = nn.Linear(8, 8), nn.ModuleList(blocks), compute

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, self.layer(x))


def runs_again(m: Any, x: Tensor) -> Any:
    return Again.apply(m.blocks[0], x, *m.blocks[0].parameters())


def checkpoints(m: Any, x: Tensor) -> Any:
    for one in m.blocks:
        x = x + Checkpoint.apply(one, False, x)
    return x


def checkpoints_with_state(m: Any, x: Tensor) -> Any:
    for one in m.blocks:
        x = nn.functional.dropout(x + Checkpoint.apply(one, True, x), 0.3)
    return x


def checkpoints_all(m: Any, x: Tensor) -> Any:
    x = x.detach()
    made = torch.tensor([], requires_grad=True)
    for one in m.blocks:
        x = CheckpointOfAll.apply(made, one, x)
    return x


def checkpoints_twice(m: Any, x: Tensor) -> Any:
    return Checkpoint.apply(
        lambda y: m.blocks[0](y) + Checkpoint.apply(m.blocks[1], True, y), True, x
    )


def reverses(m: Any, x: Tensor) -> Any:
    return Reversible.apply(x, list(zip(m.blocks[::2], m.blocks[1::2], strict=True)))


def integrates(m: Any, x: Tensor) -> Any:
    return Adjoint.apply(m.blocks[0], x, torch.linspace(0, 1, 4), *m.blocks[0].parameters())


def halves() -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)]


@pytest.mark.parametrize(
    ("blocks", "compute"),
    [
        ([block()], runs_again),
        ([block(), block()], checkpoints),
        ([nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))], checkpoints),
        ([block(), block()], checkpoints_with_state),
        ([block(0.3), block(0.25)], checkpoints_with_state),
        ([block(0.3), block()], checkpoints_all),
        ([block(0.3), block(0.2)], checkpoints_twice),
        (halves(), reverses),
        ([block()], integrates),
    ],
)
def test_layers_that_run_again_in_the_backward(
    blocks: list[nn.Module], compute: Callable[[Any, Tensor], Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    graph, built = traced((Model(blocks, compute), ((torch.randn(3, 8),), {})))
    compare(generated(graph, tmp_path / "plan", recompute(graph, 1, 0.7), True), built)


def test_parameters_are_afterwards_what_they_were() -> None:
    model = Model([block()], checkpoints)
    before = dict(model.named_parameters())
    trace(built_of((model, ((torch.randn(3, 8),), {}))), "m")
    for name, parameter in model.named_parameters():
        assert parameter is before[name] and parameter.grad is None


def test_parts_of_one_gradient_from_within_and_from_elsewhere_are_refused() -> None:
    model = Model([block()], lambda m, x: m.blocks[0](x) + Checkpoint.apply(m.blocks[0], False, x))
    with pytest.raises(ModelError, match=r"shape \(16, 8\) gets a part of its gradient from a"):
        trace(built_of((model, ((torch.randn(3, 8),), {}))), "m")


def test_random_numbers_without_their_state_are_refused() -> None:
    model = Model([block(0.5)], checkpoints)
    with pytest.raises(ModelError, match=r"draws random numbers by native_dropout\(\)"):
        trace(built_of((model, ((torch.randn(3, 8),), {}))), "m")
