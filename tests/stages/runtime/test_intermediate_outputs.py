"""Nobody gets a part of the gradient of an output that other outputs are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, load_package, traced
from tightfit.util.torch_version import release_of


class Layers(nn.Module):
    """Returns a hidden layer, what is made of it and what is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.side = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.tanh(self.first(x))
        return hidden, self.last(hidden), self.side(x)


class Writes(nn.Module):
    """Returns a part that is written in place and a part of that."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = self.first(x)
        part = whole[:, :3].add_(0.5)
        return part, whole[:, :1]


def total(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.stack([output.square().sum() for output in outputs]).sum()


ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "output": lambda m, o: torch.autograd.grad(total(o), o[0]),
    "outputs": lambda m, o: torch.autograd.grad(total(o), list(o)),
    "with weights": lambda m, o: torch.autograd.grad(total(o), [o[0], *m.parameters()]),
    "by name": lambda m, o: torch.autograd.grad(total(o), {"hidden": o[0]}),
    "edge": lambda m, o: torch.autograd.grad(
        total(o), [torch.autograd.graph.get_gradient_edge(o[0]), *m.parameters()]
    ),
    "of backward": lambda m, o: total(o).backward(inputs=[o[0], *m.parameters()]),
}


@pytest.mark.sample("name")
@pytest.mark.parametrize("model", [Layers, Writes])
@pytest.mark.parametrize("name", ASKED)
def test_a_part_of_a_gradient_is_refused(
    name: str, model: Callable[[], nn.Module], tmp_path: Path
) -> None:
    if name == "by name" and release_of(torch.__version__) < (2, 13):
        pytest.skip("PyTorch gives gradients by name from 2.13 on")
    x = torch.randn(2, 4)
    generated(traced((model(), ((x,), {})))[0], tmp_path / "module")
    planned = load_package(tmp_path / "module").load(model())
    with pytest.raises(RuntimeError, match="that other outputs are made of"):
        ASKED[name](planned, planned(x))
    planned(x)[0].sum().backward()


def test_gradients_of_the_others_are_those_of_eager(tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(2, 4)
    generated(traced((model, ((x,), {})))[0], tmp_path / "module")
    found = []
    for module in (model, load_package(tmp_path / "module").load(model)):
        outputs = module(x)
        found.append(torch.autograd.grad(total(outputs), [*outputs[1:], *module.parameters()]))
    assert all(map(torch.equal, *found))


def test_inference_tensors_are_refused(tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(2, 4)
    generated(traced((model, ((x,), {})))[0], tmp_path / "module")
    package = load_package(tmp_path / "module")
    planned = package.load(model)
    with torch.inference_mode():
        made = torch.randn(2, 4)
    with pytest.raises(package.PlanMismatch, match="made in inference mode"):
        planned(made)


class WithLoss(nn.Module):
    """Returns a loss and what it is made of, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.layer(x)
        return logits.square().sum(), logits


def hooked(loss: torch.Tensor, logits: torch.Tensor) -> None:
    logits.register_hook(lambda gradient: 2 * gradient)
    loss.backward()


def hooked_and_dropped(loss: torch.Tensor, logits: torch.Tensor) -> None:
    logits.register_hook(lambda gradient: 2 * gradient)
    del logits
    loss.backward()


def retained(loss: torch.Tensor, logits: torch.Tensor) -> None:
    logits.retain_grad()
    loss.backward()


def asked(loss: torch.Tensor, logits: torch.Tensor) -> None:
    torch.autograd.grad(loss, [loss, logits], allow_unused=True)


@pytest.mark.parametrize("use", [hooked, hooked_and_dropped, retained, asked])
def test_what_the_planned_loss_is_made_of(use: Callable[..., None], tmp_path: Path) -> None:
    """Its gradient never arrives from outside, so that no hook of it would run."""
    made: Any = (WithLoss(), ((torch.randn(2, 4),), {}), lambda output: output[0])
    graph, built = traced(made)
    planned = generated(graph, tmp_path / "module").load(built.model)
    with pytest.raises(RuntimeError, match="that other outputs are made of"):
        use(*planned(*built.samples[0][0]))
    planned(*built.samples[0][0])[0].backward()
