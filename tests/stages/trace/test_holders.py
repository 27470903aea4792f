"""What has fields to read, and what can be changed in place and put back."""

from __future__ import annotations

import argparse
import array
import collections
import datetime
import enum
import json
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tightfit.schemas.graph import OwnedGradient
from tightfit.stages.device.readings import ABSENT
from tightfit.stages.trace import holders
from tightfit.stages.trace.holders import (
    Holder,
    contents,
    is_generator,
    is_kept,
    is_object,
    is_users,
    items_of,
    put_back,
    state_of,
    unplaced_in,
)

GENERATORS: list[Any] = [
    np.random.Generator(np.random.MT19937(1)),
    random.Random(1),
    torch.Generator().manual_seed(1),
    np.random.default_rng(1),
    np.random.RandomState(1),
]


def draw(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return float(torch.rand(1, generator=generator))
    return float(generator.random())


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda one: type(one).__name__)
def test_a_generator_draws_the_same_again_from_its_state(generator: Any) -> None:
    assert is_generator(generator) and is_kept(generator) and not is_object(generator)
    before = contents(generator)
    assert state_of(generator) == before
    drawn = draw(generator)
    assert state_of(generator) != before
    put_back(generator, before)
    assert state_of(generator) == before
    assert draw(generator) == drawn


@pytest.mark.parametrize(
    ("thing", "change"),
    [
        ({"a": 1, "b": 2}, lambda thing: thing.update(a=3)),
        ({"a": 1, "b": 2}, lambda thing: thing.update(a=thing.pop("a"))),
        ([1, 2], lambda thing: thing.append(3)),
        ({1, 2}, lambda thing: thing.discard(1)),
        (collections.deque([1, 2], maxlen=3), lambda thing: thing.rotate()),
    ],
)
def test_a_container_is_given_back_what_it_held(thing: Any, change: Any) -> None:
    assert is_kept(thing) and not is_generator(thing)
    before = contents(thing)
    assert before == thing and before is not thing
    change(thing)
    assert list(thing) != list(before) or thing != before
    put_back(thing, before)
    assert (thing, list(thing)) == (before, list(before))


class Slots:
    """An object without a dictionary."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 1


def test_bytes_arrays_and_slots_are_given_back_what_they_held() -> None:
    slots, other = Slots(), Slots()
    cases: list[tuple[Any, Callable[[Any], Any]]] = [
        (bytearray(b"ab"), lambda thing: thing.append(3)),
        (array.array("d", [1.0]), lambda thing: thing.append(3.0)),
        (np.ones(2), lambda thing: thing.fill(3.0)),
        (np.array(1.0), lambda thing: thing.fill(3.0)),
        (slots, lambda thing: setattr(thing, "count", 2)),
        (slots, lambda thing: setattr(thing, "total", 2)),
        (other, lambda thing: delattr(thing, "count")),
    ]
    for thing, change in cases:
        assert is_kept(thing) and not is_generator(thing)
        before = contents(thing)
        change(thing)
        assert contents(thing) != before
        put_back(thing, before)
        assert contents(thing) == before
    assert not is_kept(np.broadcast_to(np.ones(1), (3,)))


def test_no_copy_is_kept_of_a_large_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_LARGEST", 15)
    thing = np.ones(2)
    before = contents(thing)
    assert before.copy is None and contents(thing) == before
    thing[0] = 3.0
    assert contents(thing) != before
    put_back(thing, before)
    assert list(thing) == [3.0, 1.0]


def test_a_dictionary_that_holds_what_it_held_is_left_alone() -> None:
    class Counted(dict[str, float]):
        cleared = 0

        def clear(self) -> None:
            self.cleared += 1
            super().clear()

    thing = Counted(a=1.5)
    before = contents(thing)
    put_back(thing, before)
    assert thing.cleared == 0
    thing["a"] = float("1.5")
    put_back(thing, before)
    assert thing.cleared == 1
    assert thing["a"] is before["a"]


def test_objects_with_fields_are_those_of_nobody_known() -> None:
    class Mine:
        pass

    spaces = types.SimpleNamespace(a=1), argparse.Namespace(a=1)
    users: collections.UserDict[str, int] = collections.UserDict()
    for value in (Mine(), OwnedGradient(1, 2), users, *spaces):
        assert is_object(value), value
    colour = enum.Enum("colour", ["RED"])
    known = (1, "a", None, torch.ones(1), Mine, len, draw, torch.nn.ReLU(), colour["RED"])
    for other in (*known, random.Random(), json.JSONDecoder(), datetime.timedelta(1), object()):
        assert not is_object(other), other


def test_functions_of_the_user_are_python_outside_packages() -> None:
    assert is_users(draw) and is_users(lambda: None)
    assert not any(is_users(value) for value in (len, pytest.fixture, json.loads, 1))


def test_items_have_their_place_and_members_of_sets_have_none() -> None:
    assert list(items_of({"a": 1, 2: 3})) == [(("key", "a"), "['a']", 1), (("key", 2), "[2]", 3)]
    for pair in ([4, 5], (4, 5), collections.deque([4, 5])):
        assert list(items_of(pair)) == [(("item", 0), "[0]", 4), (("item", 1), "[1]", 5)]
    assert list(items_of({1})) == []
    one = OwnedGradient(1, 2)
    assert unplaced_in({one, 1}) == unplaced_in({one: 1}) == unplaced_in(frozenset([one])) == [one]
    assert unplaced_in([one]) == unplaced_in({1: one}) == []


def test_a_part_is_read_as_it_was_first() -> None:
    holder = Holder((), "it", "fields", None, {"a": 1})
    assert (holder.read("a"), holder.read("b")) == (1, ABSENT)
    holder.known["a"] = 2
    assert (holder.read("a"), holder.reads) == (1, {"a": 1, "b": ABSENT})
