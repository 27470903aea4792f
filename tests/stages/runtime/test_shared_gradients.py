"""A gradient that somebody else holds is not written over."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import built_of, generated
from tightfit.stages.runtime.interface import OutputGradientSpec
from tightfit.stages.runtime.output_gradients import copy_shared_gradients
from tightfit.stages.trace.trace import trace

Kept = list[Any]
GIVEN = torch.arange(12.0).reshape(3, 4) - 5


class Pair(nn.Module):
    """Two outputs whose gradients are the first thing that the backward writes over."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x).relu().neg(), self.two(x).relu().neg()


def loss_of(output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return output[0].square().sum() + output[1].square().sum()


def hooks(one: torch.Tensor, two: torch.Tensor, kept: Kept) -> None:
    first: Kept = []
    one.register_hook(lambda gradient: first.append(gradient))
    two.register_hook(lambda gradient: kept.append(gradient))
    loss_of((one, two)).backward()
    kept += first


def retained(one: torch.Tensor, two: torch.Tensor, kept: Kept) -> None:
    one.retain_grad()
    loss_of((one, two)).backward()
    assert one.grad is not None
    kept.append(one.grad)


def one_for_two(one: torch.Tensor, two: torch.Tensor, kept: Kept) -> None:
    gradient = GIVEN.clone()
    kept.append(gradient)
    torch.autograd.backward([one, two], [gradient, gradient])


def views(one: torch.Tensor, two: torch.Tensor, kept: Kept) -> None:
    gradient = torch.stack([GIVEN, GIVEN * 2])
    kept.append(gradient)
    torch.stack([one, two]).backward(gradient)


def one_branch_of_a_sum(one: torch.Tensor, two: torch.Tensor, kept: Kept) -> None:
    (one + two).backward(GIVEN.clone())


def memory_of_numpy(one: torch.Tensor, two: torch.Tensor, kept: Kept) -> None:
    array = GIVEN.clone().numpy()
    one.register_hook(lambda gradient: torch.from_numpy(array))
    loss_of((one, two)).backward()
    kept.append(torch.from_numpy(array))


@pytest.mark.parametrize(
    "use", [hooks, retained, one_for_two, views, one_branch_of_a_sum, memory_of_numpy]
)
def test_what_others_hold_stays_as_it_was(use: Callable[..., None], tmp_path: Path) -> None:
    torch.manual_seed(0)
    built = built_of((Pair(), ((torch.randn(3, 4),), {}), loss_of))
    graph = trace(built, "pair")
    planned = generated(graph, tmp_path / "plan", None, True).load(copy.deepcopy(built.model))
    assert "True)" in (tmp_path / "plan" / "interface.py").read_text().split("output_gradients=")[1]
    seen: list[Kept] = []
    for model in (planned, built.model):
        kept: Kept = []
        use(*model(*built.samples[0][0]), kept)
        seen.append(kept + [parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*seen, strict=True))


def test_what_nobody_holds_is_not_copied() -> None:
    layout = OutputGradientSpec((2,), (1,), "float32", "reject", True)
    tangents = [torch.ones(2)]
    place = tangents[0].data_ptr()
    copy_shared_gradients(tangents, [layout])
    assert tangents[0].data_ptr() == place
    held = tangents[0]
    copy_shared_gradients(tangents, [layout, None])
    assert tangents[0].data_ptr() != held.data_ptr()
