"""Whose a class or a module is, and what counts as plain data."""

from __future__ import annotations

import decimal
import json
import math
import sys
import types
from typing import Any

import pytest
import torch

from tests.stages.trace import modules
from tightfit.stages.trace.guards import namespaces
from tightfit.stages.trace.guards.namespaces import (
    Namespaces,
    is_data,
    is_plain_data,
    is_user_class,
    is_user_module,
    plain_data_names,
)


class Mine:
    """A class of this module, which no package brings."""


def test_classes_and_modules_of_the_user_are_those_of_nobody_else() -> None:
    lost = type("Lost", (), {"__module__": "nowhere.to.be.found"})
    assert is_user_class(Mine) and is_user_class(lost)
    for kind in (
        int,
        type,
        object,
        torch.nn.Linear,
        decimal.Decimal,
        namespaces.Namespaces,
        pytest.Item,
    ):
        assert not is_user_class(kind), kind
    assert is_user_module(modules) and is_user_module(types.ModuleType("made_by_hand"))
    for module in (torch, torch.nn, json, math, namespaces, pytest):
        assert not is_user_module(module), module


def test_plain_data_is_numbers_texts_tensors_and_containers_of_these() -> None:
    plain = (None, True, 1, 1.5, 2j, "a", b"a", torch.float32, torch.device("cpu"), torch.ones(2))
    for value in (*plain, plain, list(plain), {1, 2}, frozenset("a"), {"a": [1, (2, {3: None})]}):
        assert is_plain_data(value), value
    for other in (Mine, Mine(), len, torch, [1, Mine()], {"a": Mine()}, {Mine: 1}, iter([1])):
        assert not is_plain_data(other), other
    nested: object = 1
    for depth in range(9):
        assert is_plain_data(nested) == (depth <= 7)
        nested = [nested]


def test_data_is_no_code() -> None:
    assert all(is_data(value) for value in (1, "a", [1], Mine(), torch.ones(1)))
    for value in (len, is_data, Mine, torch, torch.nn.Linear(1, 1), "a".upper):
        assert not is_data(value), value


def test_names_of_data_are_those_asked_for_or_all_there_are() -> None:
    among = {"one": 1, "two": [2], "code": len, "__doc__": "text", "other": Mine()}
    assert list(plain_data_names({"two", "code"}, among)) == ["two"]
    assert list(plain_data_names({"code", "__doc__"}, among)) == ["one", "two"]
    assert list(plain_data_names(set(), among)) == ["one", "two"]


def test_what_code_names_is_read_and_all_plain_data_where_it_looks_names_up() -> None:
    shown: list[str] = []
    found = Namespaces({}, lambda value, place, name: shown.append(name))
    module = types.ModuleType("made_by_hand")
    vars(module).update(other=Mine(), one=1, two=2, further=Mine(), three=3)
    found.enter_module(module, (("python", "made_by_hand"),))
    assert shown == []

    def names_two() -> int:
        found.ran(sys._getframe())
        return module.two

    def names_further(name: str) -> Any:
        found.ran(sys._getframe())
        return module.further, getattr(module, name)

    names_two()
    assert shown == ["made_by_hand.two"]
    names_further("one")
    assert shown == [f"made_by_hand.{name}" for name in ("two", "one", "further", "three")]
