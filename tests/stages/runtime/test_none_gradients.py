"""Functions of autograd that are given None for a gradient that does not arrive."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import generated, traced


class SineCosine(torch.autograd.Function):
    """Two results, of which each gradient may be None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, one: Tensor | None, other: Tensor | None) -> Tensor:
        (x,) = ctx.saved_tensors
        if one is None or other is None:
            return one * x.cos() * 3 if other is None else other * x
        return one * x.cos() - other * x.sin()


class LogProbabilities(torch.autograd.Function):
    """Logarithms of probabilities and their entropy, as trl computes them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        logs = (hidden @ weight.t()).log_softmax(-1)
        ctx.save_for_backward(hidden, weight, logs)
        return logs[..., 0], -(logs.exp() * logs).sum(-1)

    @staticmethod
    def backward(ctx: Any, of_logs: Tensor | None, of_entropy: Tensor | None) -> Any:
        hidden, weight, logs = ctx.saved_tensors
        if of_logs is None:
            return None, None
        gradient = -of_logs[..., None] * logs.exp()
        gradient[..., 0] += of_logs
        if of_entropy is not None:
            gradient = gradient - of_entropy[..., None] * logs.exp() * logs
        return gradient @ weight, gradient.t() @ hidden


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        sine, cosine = SineCosine.apply(self.first(x))
        return sine, *SineCosine.apply(self.second(cosine))


class Language(nn.Module):
    """Gives its loss beside what is only reported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 6, bias=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logs, entropy = LogProbabilities.apply(self.layer(x), self.head.weight)
        return {"loss": -logs.mean(), "entropy": entropy}


def pick(number: int) -> Callable[[Any], Tensor]:
    return lambda output: output[number].square().mean()


CASES: list[tuple[type[nn.Module], Callable[[Any], Tensor]]] = [
    *((Layered, pick(number)) for number in range(3)),
    (Layered, lambda output: sum(part.square().mean() for part in output)),
    (Language, lambda output: output["loss"]),
    (Language, lambda output: output["loss"] - 0.1 * output["entropy"].mean()),
]


@pytest.mark.parametrize(("kind", "loss"), CASES)
def test_the_loss_decides_which_gradients_arrive(
    kind: type[nn.Module], loss: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    graph, built = traced((kind(), ((x,), {}), loss))
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    for model in (planned, built.model):
        loss(model(x)).backward()
    for one, other in zip(planned.parameters(), built.model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            assert torch.equal(one.grad, other.grad)


def test_without_the_loss_all_gradients_are_to_arrive(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    graph, built = traced((Layered(), ((x,), {})))
    planned = generated(graph, tmp_path / "plan").load(built.model)
    with pytest.raises(RuntimeError, match=r"receives no gradient, but .* plan with the loss"):
        planned(x)[0].sum().backward()
    for_one = generated(traced((Layered(), ((x,), {}), pick(0)))[0], tmp_path / "one")
    one, other, _ = for_one.load(Layered())(x)
    with pytest.raises(RuntimeError, match="for a loss that does not use it"):
        (one.sum() + other.sum()).backward()
