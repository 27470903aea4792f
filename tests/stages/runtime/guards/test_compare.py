"""Plain values are the same where nothing that reads them can tell them apart."""

from __future__ import annotations

import copy
import random
import re
from array import array
from collections import UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated
from tests.stages.runtime.guards.guarded_plans import traced_watched
from tightfit.stages.runtime.guards.compare import encodings_match, same_plain
from tightfit.stages.runtime.guards.encode import encode_value
from tightfit.stages.trace.guards.guard_source import is_random_generator

X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.0, -0.0, False),
        (1, True, False),
        (1, 1.0, False),
        (1.0, 1.0, True),
        (float("nan"), float("nan"), True),
        (complex(0, 0.0), complex(0, -0.0), False),
        ("a", "a", True),
    ],
)
def test_plain_values_are_told_apart(one: Any, other: Any, same: bool) -> None:
    assert same_plain(one, other) is same
    assert encodings_match(encode_value(one), encode_value(other)) is same
    assert encodings_match(encode_value([one]), encode_value([other])) is same


class Signed(nn.Module):
    """Takes the sign of a field and of an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.sign: Any = 0.0

    def forward(self, x: torch.Tensor, other: float = 0.0) -> torch.Tensor:
        x = torch.copysign(self.layer(x), torch.full((), self.sign))
        return torch.copysign(x, torch.full((), other))


def test_a_negative_zero_is_refused(tmp_path: Path) -> None:
    graph, built = traced_watched((Signed(), ((X, 0.0), {})))
    module = generated(graph, tmp_path / "signed")
    planned = module.load(built.model)
    planned(X, float("0.0"))
    with pytest.raises(module.PlanMismatch, match=r"other is -0\.0"):
        planned(X, -0.0)
    planned.sign = -0.0
    with pytest.raises(module.PlanMismatch, match=r"sign -0\.0, the plan was made with 0\.0"):
        planned(X, 0.0)


class Closing(nn.Module):
    """Keeps a function that has the module itself around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.scale = 2.0
        self.functions = [lambda x: x * self.scale]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.functions[0](self.layer(x))


def test_a_function_may_have_the_model_around_it(tmp_path: Path) -> None:
    model = Closing()
    graph, _ = traced_watched((model, ((X,), {})))
    module = generated(graph, tmp_path / "closing")
    planned = module.load(model)
    assert torch.equal(planned(X), model.layer(X) * 2)
    planned.scale = 3.0
    with pytest.raises(module.PlanMismatch, match=r"scale 3\.0"):
        planned(X)
    model.scale = 2.0
    model.functions = Closing().functions
    with pytest.raises(module.PlanMismatch, match="the plan was made with the model itself"):
        planned(X)


class Strange:
    """Has what NumPy's generators have, and is none."""

    random = bit_generator = _bit_generator = None


def test_only_generators_are_taken_for_them() -> None:
    Strange.__module__ = "numpy.random.strange"
    assert not is_random_generator(Strange())
    for one in (random.Random(1), np.random.default_rng(1), np.random.RandomState(1)):
        assert is_random_generator(one)
    assert is_random_generator(torch.Generator())


@dataclass(slots=True)
class Options:
    """Settings without a dictionary."""

    scale: float = 2.0


class Numbers(np.ndarray[Any, Any]):
    """An array of a user's class."""


class Odd(float):
    """A number of a user's class."""


VALUES: dict[str, tuple[Any, Callable[..., Any], Callable[[Any], Any]]] = {
    "slots": (Options(), lambda s: s.value.scale, lambda m: setattr(m.value, "scale", 5.0)),
    "slots replaced": (
        Options(),
        lambda s: s.value.scale,
        lambda m: setattr(m, "value", Options(5.0)),
    ),
    "decimal": (Decimal(2), lambda s: float(s.value), lambda m: setattr(m, "value", Decimal(5))),
    "fraction": (
        Fraction(2),
        lambda s: float(s.value),
        lambda m: setattr(m, "value", Fraction(5)),
    ),
    "float": (Odd(2), lambda s: float(s.value), lambda m: setattr(m, "value", Odd(5))),
    "deque": (deque([2.0]), lambda s: s.value[0], lambda m: m.value.__setitem__(0, 5.0)),
    "array": (array("d", [2.0]), lambda s: s.value[0], lambda m: m.value.__setitem__(0, 5.0)),
    "bytearray": (bytearray([2]), lambda s: s.value[0], lambda m: m.value.__setitem__(0, 5)),
    "a span of time": (
        timedelta(seconds=2),
        lambda s: s.value.total_seconds(),
        lambda m: setattr(m, "value", timedelta(seconds=3)),
    ),
    "a pattern": (
        re.compile("a"),
        lambda s: 2.0 if s.value.match("ab") else 1.0,
        lambda m: setattr(m, "value", re.compile("b")),
    ),
    "a matrix of which not all is shown": (
        np.full((50, 50), 2.0).view(np.matrix),
        lambda s: float(s.value[25, 25]),
        lambda m: m.value.__setitem__((25, 25), 3.0),
    ),
    "an array of a user's class": (
        np.full(5, 2.0).view(Numbers),
        lambda s: float(s.value[0]),
        lambda m: m.value.__setitem__(0, 3.0),
    ),
    "dictionary": (
        UserDict(s=2.0),
        lambda s: s.value["s"],
        lambda m: m.value.__setitem__("s", 5.0),
    ),
}


class Valued(nn.Module):
    """Multiplies with what is read of a value."""

    def __init__(self, value: Any, reads: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.value = value
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.reads(self)


@pytest.mark.parametrize("name", VALUES)
def test_values_of_other_kinds_are_compared(name: str, tmp_path: Path) -> None:
    value, reads, change = VALUES[name]
    graph, built = traced_watched((Valued(copy.deepcopy(value), reads), ((X,), {})))
    module = generated(graph, tmp_path / "valued")
    planned = module.load(built.model)
    planned.value = copy.deepcopy(value)
    planned(X)
    planned(X)
    change(planned)
    with pytest.raises(module.PlanMismatch, match=r"the plan was made with"):
        planned(X)
