"""What a forward makes once and then finds made is planned; what changes again, or makes other
numbers the first time, is refused."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import check_equal, generated, step, traced
from tightfit.util.errors import ModelError


class Model(nn.Module):
    """A linear layer around what `does` does."""

    def __init__(self, does: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.made: Any = None
        self.count = 0
        self.does = does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self, self.layer(x))


def flags(self: Any, x: torch.Tensor) -> torch.Tensor:
    if not self.made:
        self.made = True
    return x.tanh()


def caches(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = [torch.arange(3.0).mul_(2), x.shape[-1]]
    return x * self.made[0]


def of_the_input(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = x.detach().mean(0)
    return x * self.made


def other_numbers(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = True
        return x.tanh()
    return x.sin()


def other_output(self: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = x.tanh(), x.sin()
    if self.made is None:
        self.made = True
        return one
    return other


def other_cache(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = torch.ones(3)
        return x * torch.zeros(3)
    return x * self.made


def warms_up(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.count < 5:
        self.count += 1
    return x.tanh()


def fills_a_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = []
    self.made.append(1)
    return x.tanh()


def counts_inside(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = {"steps": {"count": 0}}
    self.made["steps"]["count"] += 1
    return x.tanh()


def fills_a_queue(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = collections.deque()
    self.made.append(len(self.made))
    return x.tanh()


def fills_a_set(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = set()
    self.made.add(len(self.made))
    return x.tanh()


class Slotted:
    """An object that has no dictionary."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def counts_in_a_slot(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.made is None:
        self.made = Slotted()
    self.made.count += 1
    return x.tanh()


def sample() -> Any:
    return (torch.randn(2, 3),), {}


@pytest.mark.parametrize("does", [flags, caches], ids=lambda does: does.__name__)
def test_what_is_made_once_is_planned_and_may_be_there(does: Any, tmp_path: Path) -> None:
    model = Model(does)
    graph, built = traced((model, sample()))
    assert model.made is None
    twin = copy.deepcopy(model)
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(model))
    for number in range(3):
        given = built.samples[0]
        check_equal((planned, *step(planned, given, number)), (twin, *step(twin, given, number)))
        planned.made = twin.made
    if does is caches:
        planned.made = [torch.ones(3), 3]
        with pytest.raises(RuntimeError, match="made"):
            planned(*sample()[0])


@pytest.mark.parametrize(
    "does",
    [
        *(of_the_input, other_numbers, other_output, other_cache, warms_up, fills_a_list),
        *(fills_a_queue, fills_a_set, counts_inside, counts_in_a_slot),
    ],
    ids=lambda does: does.__name__,
)
def test_what_changes_numbers_or_again_is_refused(does: Any) -> None:
    model = Model(does)
    with pytest.raises(ModelError, match=r"the forward sets (made|count) at tests"):
        traced((model, sample()))
    assert model.made is None and model.count == 0


class Counted(nn.Module):
    """A model that makes something once, beside counters that every forward writes."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.register_buffer("steps", torch.zeros(()))
        self.made = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.made = True
        self.steps.add_(1)
        return self.layers(x) * self.steps


def test_planning_leaves_counters_as_they_were(tmp_path: Path) -> None:
    model = Counted()
    before = copy.deepcopy(model.state_dict())
    graph, built = traced((model, sample()))
    assert all(torch.equal(model.state_dict()[name], was) for name, was in before.items())
    twin, given = copy.deepcopy(model), built.samples[0]
    planned = generated(graph, tmp_path / "plan").load(model)
    check_equal((planned, *step(planned, given, 0)), (twin, *step(twin, given, 0)))


class Way:
    """How something is done for one class of tensors."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


WAY = Way()
WAYS: dict[type, Way] = {torch.Tensor: WAY}
SEEN: dict[type, int] = {torch.Tensor: 1}


def by_class(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Keeps the way for each class of tensors, as einops does."""
    if type(x) not in WAYS:
        WAYS[type(x)] = WAY
    return WAYS[type(x)].run(x)


def counts_classes(self: Any, x: torch.Tensor) -> torch.Tensor:
    SEEN[type(x)] = SEEN.get(type(x), 0) + 1
    return x.tanh()


def other_way(self: Any, x: torch.Tensor) -> torch.Tensor:
    if type(x) not in WAYS:
        WAYS[type(x)] = Way()
    return WAYS[type(x)].run(x)


def test_what_is_kept_for_the_tensors_of_the_capture_is_planned(tmp_path: Path) -> None:
    model = Model(by_class)
    graph, built = traced((model, sample()))
    assert {torch.Tensor: WAY} == WAYS
    planned, given = generated(graph, tmp_path / "plan").load(copy.deepcopy(model)), built.samples
    check_equal((planned, *step(planned, given[0], 0)), (model, *step(model, given[0], 0)))


@pytest.mark.parametrize("does", [counts_classes, other_way], ids=lambda does: does.__name__)
def test_what_eager_does_not_find_for_tensors_is_refused(does: Any) -> None:
    with pytest.raises(
        ModelError, match=r"changes <class 'torch.Tensor'> in the global (WAYS|SEEN)"
    ):
        traced((Model(does), sample()))
