"""Objects with tensors as inputs: user dictionaries, model outputs, dataclasses, plain objects."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit import ModelError, PlanMismatch

pytestmark = pytest.mark.usefixtures("loose_bounds")


class Encoding(UserDict[str, Any]):
    """As transformers' BatchEncoding: items, and attributes beside them."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data)
        self._n_sequences = None

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Batch:
    """As a collator's: tensors, a number, a text, an object."""

    def __init__(self, x: torch.Tensor, scale: float = 2.0) -> None:
        self.x, self.scale, self.name = x, scale, "a"
        self.edges = types.SimpleNamespace(of=torch.tensor([0, 1, 1, 3]))

    @property
    def rows(self) -> int:
        return self.x.shape[0]


@dataclasses.dataclass
class Features:
    x: torch.Tensor
    mask: torch.Tensor | None = None


class Model(nn.Module):
    def __init__(self, read: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(8, 8), read

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layer(self.read(batch))


def read_items(batch: Any) -> torch.Tensor:
    return batch["x"] * batch["rate"] + batch.x


def read_attributes(batch: Any) -> torch.Tensor:
    return batch.x[batch.edges.of] * batch.scale / batch.rows


def read_field(batch: Any) -> torch.Tensor:
    return batch.x


def plan(model: nn.Module, batch: Any, store: Path) -> nn.Module:
    settings = {**SETTINGS, "store": store, "strategy": "keep_all", "progress": False}
    return tightfit.plan(model, (batch,), **settings)[0]


@pytest.mark.parametrize(
    ("read", "make"),
    [
        (read_items, lambda x: Encoding({"x": x, "rate": 0.5})),
        (read_attributes, Batch),
        (read_field, Features),
        (read_field, lambda x: types.SimpleNamespace(x=x)),
    ],
)
def test_tensors_in_an_object_are_inputs(read: Any, make: Any, store: Path) -> None:
    torch.manual_seed(0)
    model = Model(read)
    eager = copy.deepcopy(model)
    planned = plan(model, make(torch.randn(4, 8)), store)
    batch = make(torch.randn(4, 8))
    for one in (eager, planned):
        one(batch).pow(2).sum().backward()
    assert torch.equal(planned.layer.weight.grad, eager.layer.weight.grad)  # type: ignore


def test_another_number_in_an_object_refuses_the_call(store: Path) -> None:
    planned = plan(Model(read_attributes), Batch(torch.randn(4, 8)), store)
    with pytest.raises(PlanMismatch, match=r"batch.scale is 3.0, the plan was made for 2.0"):
        planned(Batch(torch.randn(4, 8), 3.0))


def test_objects_of_two_shapes_get_a_plan_each(store: Path) -> None:
    model = Model(read_field)
    settings = {**SETTINGS, "store": store, "strategy": "keep_all", "progress": False}
    samples: list[Any] = [((Features(torch.randn(rows, 8)),), {}) for rows in (4, 2)]
    planned, _ = tightfit.plan(model, samples=samples, **settings)
    assert planned(Features(torch.randn(2, 8))).shape == (2, 8)


def test_an_array_is_refused_by_name(store: Path) -> None:
    model = Model(lambda batch: torch.from_numpy(batch))
    with pytest.raises(ModelError, match=r"input\[0\]\[0\] is a NumPy array.*torch.from_numpy"):
        plan(model, np.ones((4, 8), np.float32), store)
