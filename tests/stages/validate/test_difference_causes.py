"""A difference between a plan and its model is told with its cause and with what to do."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.validate import check_captured_graph, check_planned_module


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x) * mask


class Clocked(Plain):
    """Reads a clock that no two calls find at the same time."""

    clock = itertools.count(2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x, mask) * next(Clocked.clock)


class Shorter(Plain):
    """Goes another way where nothing is masked."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x) + 0.5 if bool(mask.all()) else super().forward(x, mask)


class Counting(Plain):
    """Counts its calls and adds the count."""

    calls = 0

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x, mask) + (self.calls - 1)


class Other(Plain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x, mask) * 1.5


def built_of(model: nn.Module) -> BuiltModel:
    torch.manual_seed(1)
    mask = torch.ones(3, 4, dtype=torch.long)
    return check_factory_result((model, [((torch.randn(3, 4), mask), {})]), "it")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Clocked, "the model differs from itself when its step is repeated, in output 0"),
        (
            Shorter,
            "where input[0][1] holds only ones the model goes a shorter way: plan with",
        ),
        (Counting, "(calls changes in a step)"),
        (Other, "plan its layers one by one to find the one that differs"),
    ],
)
def test_the_cause_is_named_with_what_to_do(kind: type[Plain], words: str) -> None:
    torch.manual_seed(0)
    model, plain = kind(), Plain()
    plain.load_state_dict(model.state_dict())
    graph = trace(built_of(Plain()), "it")
    said = check_planned_module(graph, built_of(model), plain)
    assert words in said and "fault" not in said
    if kind is not Counting:
        assert words in check_captured_graph(graph, built_of(model), plain)


def test_what_is_equal_is_not_refused() -> None:
    model = Plain()
    graph = trace(built_of(model), "it")
    assert check_captured_graph(graph, built_of(model), model) == ""


class Checkpointing(nn.Module):
    """Checkpoints one of its layers."""

    def __init__(self, inner: nn.Module, **options: Any) -> None:
        super().__init__()
        self.inner, self.head, self.options = inner, nn.Linear(4, 4), options

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.inner, x, **self.options))


def causes_of(inner: nn.Module, **options: Any) -> str:
    """What is said where the captured step is compared with that of the model, by a stand-in."""
    torch.manual_seed(0)
    model = Checkpointing(inner, **options).train()
    built = check_factory_result((model, [((torch.randn(8, 4, requires_grad=True),), {})]), "it")
    graph = trace(built, "it")
    model.options = {"use_reentrant": False}
    return check_captured_graph(graph, built, Checkpointing(nn.Tanh(), **model.options))


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_runs_otherwise_in_its_own_checkpoint_is_named(reentrant: bool) -> None:
    dropping = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    said = causes_of(dropping, use_reentrant=reentrant, preserve_rng_state=False)
    assert "test_difference_causes.py:" in said and "leave preserve_rng_state=False out" in said
    said = causes_of(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), use_reentrant=reentrant)
    assert "changes the buffer 'inner.1.num_batches_tracked' in place" in said
    still = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))
    assert "rng" not in causes_of(still, use_reentrant=reentrant, preserve_rng_state=False)
    assert "rng" not in causes_of(dropping, use_reentrant=reentrant)
