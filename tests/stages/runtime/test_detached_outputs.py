"""Outputs require a gradient where those of the model do, and receive one nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, load_package, traced

Forward = Callable[[Any, torch.Tensor], tuple[torch.Tensor, ...]]


class Scaled(nn.Module):
    """A layer with a scale; `ending` makes the outputs."""

    def __init__(self, ending: Forward) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.ending = ending

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.ending(self, x)


def with_hidden(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = model.layer(x)
    return hidden * model.scale, hidden.detach()


def with_itself(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = model.layer(x)
    return hidden, hidden.detach()


def with_both(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = model.layer(x)
    output = hidden * model.scale
    return hidden, output, output.detach(), hidden.detach()


ENDINGS: dict[str, Forward] = {
    "parameter": lambda m, x: (m.layer(x) * m.scale, m.scale),
    "detached parameter": lambda m, x: (m.layer(x) * m.scale, m.scale.detach()),
    "its data": lambda m, x: (m.layer(x) * m.scale, m.scale.data),
    "both": lambda m, x: (m.layer(x) * m.scale, m.scale, m.scale.detach()),
    "detached view": lambda m, x: (m.layer(x) * m.scale, m.scale.detach().view(2, 4)),
    "input": lambda m, x: (m.layer(x) * m.scale, x),
    "detached input": lambda m, x: (m.layer(x) * m.scale, x.detach()),
    "detached hidden": with_hidden,
    "detached output": with_itself,
    "detached outputs of several": with_both,
}


def first(output: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return output[0].sum()


@pytest.mark.sample("name")
@pytest.mark.parametrize("loss", [None, first], ids=["any loss", "planned loss"])
@pytest.mark.parametrize("name", ENDINGS)
def test_stop_gradients_stop(name: str, loss: Any, tmp_path: Path) -> None:
    model, x = Scaled(ENDINGS[name]), torch.randn(4, 8, requires_grad=True)
    sample: Any = ((x,), {})
    graph, _ = traced((model, sample) if loss is None else (model, sample, loss))
    generated(graph, tmp_path / "module")
    planned = load_package(tmp_path / "module").load(copy.deepcopy(model))
    left = []
    for module in (model, planned):
        x.grad = None
        outputs = module(x)
        total = sum(out.mul(i).sum() for i, out in enumerate(outputs, 1)) if loss is None else None
        (loss(outputs) if total is None else total).backward()
        left.append(
            [*[out.requires_grad for out in outputs], x.grad]
            + [weight.grad for weight in module.parameters()]
        )
    for mine, theirs in zip(*left, strict=True):
        same = torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
        assert same
