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

from tightfit.schemas.graph.training_graph import OwnedGradient
from tightfit.stages.runtime.guards.encode import MISSING
from tightfit.stages.trace.guards import guard_source
from tightfit.stages.trace.guards.guard_source import (
    GuardSource,
    container_items,
    copy_contents,
    generator_state,
    is_guarded_object,
    is_mutable,
    is_random_generator,
    is_user_function,
    pathless_objects,
    restore_contents,
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
    assert (
        is_random_generator(generator)
        and is_mutable(generator)
        and not is_guarded_object(generator)
    )
    before = copy_contents(generator)
    assert generator_state(generator) == before
    drawn = draw(generator)
    assert generator_state(generator) != before
    restore_contents(generator, before)
    assert generator_state(generator) == before
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
    assert is_mutable(thing) and not is_random_generator(thing)
    before = copy_contents(thing)
    assert before == thing and before is not thing
    change(thing)
    assert list(thing) != list(before) or thing != before
    restore_contents(thing, before)
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
        assert is_mutable(thing) and not is_random_generator(thing)
        before = copy_contents(thing)
        change(thing)
        assert copy_contents(thing) != before
        restore_contents(thing, before)
        assert copy_contents(thing) == before
    assert not is_mutable(np.broadcast_to(np.ones(1), (3,)))


def test_no_copy_is_kept_of_a_large_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_source, "_MAX_COPIED_BYTES", 15)
    thing = np.ones(2)
    before = copy_contents(thing)
    assert before.copy is None and copy_contents(thing) == before
    thing[0] = 3.0
    assert copy_contents(thing) != before
    restore_contents(thing, before)
    assert list(thing) == [3.0, 1.0]


def test_a_dictionary_that_holds_what_it_held_is_left_alone() -> None:
    class Counted(dict[str, float]):
        cleared = 0

        def clear(self) -> None:
            self.cleared += 1
            super().clear()

    thing = Counted(a=1.5)
    before = copy_contents(thing)
    restore_contents(thing, before)
    assert thing.cleared == 0
    thing["a"] = float("1.5")
    restore_contents(thing, before)
    assert thing.cleared == 1
    assert thing["a"] is before["a"]


def test_objects_with_fields_are_those_of_nobody_known() -> None:
    class Mine:
        pass

    spaces = types.SimpleNamespace(a=1), argparse.Namespace(a=1)
    users: collections.UserDict[str, int] = collections.UserDict()
    for value in (Mine(), OwnedGradient(1, 2), users, *spaces):
        assert is_guarded_object(value), value
    color = enum.Enum("color", ["RED"])
    known = (1, "a", None, torch.ones(1), Mine, len, draw, torch.nn.ReLU(), color["RED"])
    for other in (*known, random.Random(), json.JSONDecoder(), datetime.timedelta(1), object()):
        assert not is_guarded_object(other), other


def test_functions_of_the_user_are_python_outside_packages() -> None:
    assert is_user_function(draw) and is_user_function(lambda: None)
    assert not any(is_user_function(value) for value in (len, pytest.fixture, json.loads, 1))


def test_items_have_their_place_and_members_of_sets_have_none() -> None:
    assert list(container_items({"a": 1, 2: 3})) == [
        (("key", "a"), "['a']", 1),
        (("key", 2), "[2]", 3),
    ]
    for pair in ([4, 5], (4, 5), collections.deque([4, 5])):
        assert list(container_items(pair)) == [(("item", 0), "[0]", 4), (("item", 1), "[1]", 5)]
    assert list(container_items({1})) == []
    one = OwnedGradient(1, 2)
    assert (
        pathless_objects({one, 1})
        == pathless_objects({one: 1})
        == pathless_objects(frozenset([one]))
        == [one]
    )
    assert pathless_objects([one]) == pathless_objects({1: one}) == []


def test_a_part_is_read_as_it_was_first() -> None:
    holder = GuardSource((), "it", "fields", None, {"a": 1})
    assert (holder.read("a"), holder.read("b")) == (1, MISSING)
    holder.known["a"] = 2
    assert (holder.read("a"), holder.reads) == (1, {"a": 1, "b": MISSING})
