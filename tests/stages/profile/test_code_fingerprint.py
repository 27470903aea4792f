"""Functions that do the same have one fingerprint, others another or none."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tightfit.stages.profile.code_fingerprint import fingerprint_function

TARGET = torch.arange(5)
WEIGHT = 2.0


def helper(output: torch.Tensor) -> torch.Tensor:
    return output.square()


def by_global(output: torch.Tensor) -> torch.Tensor:
    return (helper(output) * WEIGHT).mean()


def by_closure(weight: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def loss(output: torch.Tensor) -> torch.Tensor:
        return (output * weight).mean()

    return loss


def by_default(weight: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def loss(output: torch.Tensor, by: Any = weight) -> torch.Tensor:
        return (output * by).mean()

    return loss


def by_nested(weight: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def outer(output: torch.Tensor) -> torch.Tensor:
        return sum(part * weight for part in output)

    return outer


@dataclass
class Callee:
    weight: Any

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        return output.mean() * self.weight

    def method(self, output: torch.Tensor) -> torch.Tensor:
        return output.sum() * self.weight


class Criterion(nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.weight = nn.Parameter(torch.tensor(float(weight)))

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        return self.smooth(output, TARGET) * self.weight


MAKERS: list[Callable[[Any], Any]] = [
    by_closure,
    by_default,
    by_nested,
    Callee,
    lambda weight: Callee(weight).method,
    Criterion,
    lambda weight: Criterion(weight).forward,
    lambda weight: functools.partial(functional.cross_entropy, label_smoothing=weight),
    lambda weight: by_closure(torch.full((3,), float(weight))),
    lambda weight: by_closure(by_closure(weight)),
    lambda weight: by_closure({"a": [weight, None], "b": {1, 2}}),
]


@pytest.mark.parametrize("make", MAKERS)
def test_the_same_content_is_the_same_code(make: Callable[[Any], Any]) -> None:
    assert fingerprint_function(make(0.5)) is not None
    assert fingerprint_function(make(0.5)) == fingerprint_function(make(0.5))
    assert fingerprint_function(make(0.5)) != fingerprint_function(make(0.25))


def test_plain_values_are_told_apart_by_type() -> None:
    codes = {
        fingerprint_function(by_closure(weight)) for weight in (1, 1.0, True, "1", b"1", (1,), [1])
    }
    assert len(codes) == 7 and None not in codes


def test_global_names_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint_function(by_global)
    monkeypatch.setitem(globals(), "WEIGHT", 3.0)
    second = fingerprint_function(by_global)
    monkeypatch.setitem(globals(), "helper", lambda output: output.abs())
    third = fingerprint_function(by_global)
    assert None not in (first, second, third) and len({first, second, third}) == 3


def test_functions_of_pytorch_are_known_by_name() -> None:
    functions: list[Any] = [
        functional.mse_loss,
        functional.l1_loss,
        torch.sum,
        torch.mean,
        nn.MSELoss(),
        nn.L1Loss(),
    ]
    codes = [fingerprint_function(function) for function in functions]
    assert None not in codes and len(set(codes)) == len(codes)


def test_what_cannot_be_told_has_no_fingerprint() -> None:
    for hidden in (
        random.Random(0),
        torch.Generator(),
        iter([1]),
        torch.empty(2, device="meta"),
        (number for number in range(2)),
    ):
        assert fingerprint_function(by_closure(hidden)) is None
    assert fingerprint_function(lambda output: eval("output.sum()")) is None


def test_functions_that_refer_to_themselves_end() -> None:
    def first(depth: int) -> int:
        return second(depth - 1) if depth else 0

    def second(depth: int) -> int:
        return first(depth)

    assert fingerprint_function(first) is not None
