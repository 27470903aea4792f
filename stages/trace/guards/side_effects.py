"""Which side effects of a forward a plan can replay: what it stores in attributes, dictionaries and
lists without reading it first, and the counters that it only moves."""

from __future__ import annotations

import collections
import json
import types
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tightfit.stages.runtime.guards.encode import MISSING, encode_value
from tightfit.stages.runtime.guards.paths import cell_contents, cells_by_name
from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.runtime.side_effects import APPEND, ASSIGN, COUNT, REPLACE, SideEffect
from tightfit.stages.torch_utils.operators import encode_plain_argument
from tightfit.stages.trace.guards.guard_source import (
    GuardPath,
    GuardSource,
    StateSnapshot,
    is_unchanged,
)

_TENSOR = "a tensor of the step"
EffectKey = tuple[int, Any]
"""The id of what a forward changes, and the name there, None for a list."""
Form = tuple[str, int, str]
"""A way to replay a change: its kind, its amount, and the structure and constants of what is
stored."""


@dataclass
class EffectCandidate:
    """A change that a forward makes each time that it runs, with the ways to replay it."""

    kept: StateSnapshot
    name: Any
    path: GuardPath
    label: str
    of_container: bool
    """Whether it changes a list or dictionary, and no attribute or global."""
    forms: set[Form] = field(default_factory=set)

    @property
    def key(self) -> EffectKey:
        """What it changes."""
        return id(self.kept.thing), self.name

    @property
    def kind(self) -> str:
        """The way in which it is replayed, "" where there is none."""
        kinds = {form[0] for form in self.forms}
        return next((kind for kind in (COUNT, APPEND, REPLACE, ASSIGN) if kind in kinds), "")

    def effect(self) -> SideEffect:
        """The side effect as a package has it."""
        path = [[step[0], *(encode_value(part) for part in step[1:])] for step in self.path]
        amount = next(form[1] for form in self.forms if form[0] == self.kind)
        return SideEffect(self.kind, path, self.name, self.label, amount, self.of_container)

    def is_changed(self) -> bool:
        """Whether the run that ends has changed it."""
        now, before = self.kept.thing, self.kept.at_start
        if self.name is not None:
            return not is_unchanged(before.get(self.name, MISSING), now.get(self.name, MISSING))
        return len(before) != len(now) or not all(map(is_unchanged, before, now))

    def stored(self) -> Any:
        """What the run that ends has stored, as the step gives it."""
        if self.name is not None:
            return self.kept.thing.get(self.name, MISSING)
        items = list(self.kept.thing)
        return items[len(self.kept.at_start) :] if self.kind == APPEND else items


class EffectDetector:
    """Finds what a forward changes in each of several runs that leave their changes to the next."""

    def __init__(self) -> None:
        self.runs: list[dict[EffectKey, EffectCandidate]] = []

    def recurring(self, own: Container[int]) -> list[EffectCandidate]:
        """What both of two runs changed, with the ways to replay it that both show, and the plain
        values and the model's `own` tensors, by id, that the second one found set already."""
        first, last = self.runs
        for key, one in last.items():
            one.forms &= first[key].forms if key in first else set()
        containers = {id(one.kept) for one in last.values() if one.of_container}
        plain = [
            one
            for key, one in first.items()
            if key not in last
            and any(form[0] == ASSIGN for form in one.forms)
            and (id(one.kept) in containers or not one.of_container)
            and all(id(tensor) in own for tensor in _tensors(one.stored()))
        ]
        for one in plain:
            one.forms = {form for form in one.forms if form[0] == ASSIGN}
        return [*last.values(), *plain]


def change_forms(kept: StateSnapshot, name: Any, now: Any) -> set[Form]:
    """The ways to replay one change of a run."""
    if isinstance(kept.thing, dict):
        after = now.get(name, MISSING)
        before = kept.at_start.get(name, MISSING)
        written = _written_structure(after) if _is_key(name) else ""
        forms = {(ASSIGN, 0, written)} if written else set()
        if written and type(before) is int and type(after) is int:
            forms.add((COUNT, after - before, ""))
        return forms
    if not isinstance(kept.thing, list | collections.deque):
        return set()
    before, after = list(kept.at_start), list(now)
    forms = set()
    start = after[: len(before)]
    if len(after) > len(before) and all(map(is_unchanged, before, start)):
        new = after[len(before) :]
        if written := _written_structure(new):
            forms.add((APPEND, len(new), written))
    fresh = not any(item is old for item in after for old in before)
    if fresh and (written := _written_structure(after)):
        forms.add((REPLACE, len(after), written))
    return forms


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def _is_key(name: Any) -> bool:
    return type(name) in (str, int, bool)


def _written_structure(value: Any) -> str:
    """The structure and the constants of a value, "" where a plan cannot make it."""
    if value is MISSING:
        return ""
    leaves, text = flatten(value)
    try:
        constants = [
            _TENSOR if isinstance(leaf, torch.Tensor) else encode_plain_argument(leaf)
            for leaf in leaves
        ]
    except TypeError:
        return ""
    return f"{text} {json.dumps(constants)}"


class ProbeCounter(int):
    """A number that notes whatever is done with it except adding."""

    noted: Callable[[], None]

    @classmethod
    def of(cls, value: int, noted: Callable[[], None]) -> ProbeCounter:
        """A number that calls `noted` when it is read."""
        made = cls(value)
        made.noted = noted
        return made

    def __add__(self, other: int) -> Any:
        if type(other) is not int:
            self.noted()
            return int.__add__(self, other)
        return ProbeCounter.of(int.__add__(self, other), self.noted)

    __radd__ = __add__

    def __sub__(self, other: int) -> Any:
        return self.__add__(-other)


def _make_noting_method(name: str, base: type) -> Any:
    original = getattr(base, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.noted()
        return original(self, *args, **kwargs)

    return method


_NUMBER_READS = (
    "abs and bool ceil divmod eq float floor floordiv format ge gt hash index int invert le lshift "
    "lt mod mul ne neg or pos pow rand rdivmod repr rfloordiv rlshift rmod rmul ror round rpow "
    "rrshift rshift rsub rtruediv rxor str truediv trunc xor"
).split()
for _name in _NUMBER_READS:
    setattr(ProbeCounter, f"__{_name}__", _make_noting_method(f"__{_name}__", int))


class _ProbeList(list[Any]):
    """A list that notes whatever is done with it except adding to its end and clearing it."""

    noted: Callable[[], None]


class _ProbeDeque(collections.deque[Any]):
    """The same for a deque."""

    noted: Callable[[], None]


_LIST_READS = (
    *("__len__", "__iter__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__eq__"),
    *("__ne__", "__add__", "__mul__", "__rmul__", "__imul__", "__reversed__", "__repr__", "index"),
    *("__lt__", "__gt__", "__le__", "__ge__", "count", "copy", "pop", "remove", "reverse"),
    *("insert", "sort", "rotate", "appendleft", "popleft", "extendleft", "__copy__"),
    *("__reduce_ex__", "__sizeof__"),
)
for _kind, _base in ((_ProbeList, list), (_ProbeDeque, collections.deque)):
    for _name in _LIST_READS:
        if hasattr(_base, _name):
            setattr(_kind, _name, _make_noting_method(_name, _base))


class _ProbeDict(dict[Any, Any]):
    """A dictionary that notes whatever is done with it except setting items, and reading those that
    were set or are `readable`."""

    noted: Callable[[], None]
    readable: set[Any]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.readable.add(key)
        super().__setitem__(key, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def _read(self, key: Any) -> None:
        if key not in self.readable:
            self.noted()

    def __getitem__(self, key: Any) -> Any:
        self._read(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._read(key)
        return super().get(key, default)

    def __contains__(self, key: Any) -> bool:
        self._read(key)
        return super().__contains__(key)


_DICT_READS = (
    *("__len__", "__iter__", "__delitem__", "__eq__", "__ne__", "__or__", "__ror__", "__ior__"),
    *("__reversed__", "__repr__", "copy", "pop", "popitem", "setdefault", "keys", "values"),
    *("items", "clear", "__reduce_ex__", "__sizeof__"),
)
for _name in _DICT_READS:
    setattr(_ProbeDict, _name, _make_noting_method(_name, dict))


class EffectProbe:
    """Within it lists, dictionaries and counters that a forward changes are others, which note when
    they are read.

    `places` are those of all things; what is read while it is `quiet` is not the forward's doing.
    """

    def __init__(
        self,
        candidates: list[EffectCandidate],
        places: dict[int, list[Place]],
        quiet: Callable[[], bool],
    ) -> None:
        self._quiet = quiet
        self._candidates = candidates
        self._places = places
        self._read: set[str] = set()
        self._counters: list[tuple[EffectCandidate, dict[Any, Any], int]] = []
        self._lists: list[tuple[EffectCandidate, Any]] = []
        self._before: list[tuple[Any, Any, Any]] = []

    def __enter__(self) -> None:
        probes: dict[int, Any] = {}
        for one in self._candidates:
            if one.of_container and id(one.kept.thing) not in probes:
                probes[id(one.kept.thing)] = self._swap_container(one)
        for one in self._candidates:
            if one.kind == COUNT:
                fields = probes.get(id(one.kept.thing), one.kept.thing)
                value = dict.__getitem__(fields, one.name) + 1_000_003
                self._counters.append((one, fields, value))
                self._set_item(fields, one.name, ProbeCounter.of(value, self._note(one.label)))

    def __exit__(self, *_: object) -> None:
        for one, fields, value in self._counters:
            now = dict.get(fields, one.name)
            moved = int.__sub__(now, value) if isinstance(now, int) else 0
            one.forms = {form for form in one.forms if form[:2] == (COUNT, moved)}
        for one, probe in self._lists:
            base: Any = list if isinstance(probe, list) else collections.deque
            items = [*base.__iter__(probe)]
            kind = APPEND if items and items[0] is None else REPLACE
            one.forms = {form for form in one.forms if form[0] == kind}
        for owner, name, thing in reversed(self._before):
            _put_item(owner, name, thing)

    def confirmed(self) -> list[EffectCandidate]:
        """The candidates that can be replayed; of those that change one list or dictionary, all or
        none."""
        failed = {
            id(one.kept)
            for one in self._candidates
            if one.of_container and (not one.kind or self._read & {one.label, one.kept.shown})
        }
        return [
            one
            for one in self._candidates
            if one.kind and one.label not in self._read and id(one.kept) not in failed
        ]

    def _note(self, label: str) -> Callable[[], None]:
        def noted() -> None:
            if not self._quiet():
                self._read.add(label)

        return noted

    def _set_item(self, fields: dict[Any, Any], name: Any, value: Any) -> None:
        self._before.append((fields, name, dict.__getitem__(fields, name)))
        dict.__setitem__(fields, name, value)

    def _swap_container(self, one: EffectCandidate) -> Any:
        """What stands for a list or dictionary, in all of its places."""
        thing, probe = one.kept.thing, _make_probe(one.kept.thing)
        places = self._places.get(id(thing), [])
        if probe is None or not places:
            self._read.add(one.kept.shown)
            return thing
        for owner, name in places:
            self._before.append((owner, name, thing))
            _put_item(owner, name, probe)
        if isinstance(probe, _ProbeDict):
            mine = [other for other in self._candidates if other.kept is one.kept]
            probe.readable = {other.name for other in mine if other.kind == COUNT}
        else:
            self._lists.append((one, probe))
        probe.noted = self._note(one.kept.shown)
        return probe


Place = tuple[Any, Any]
"""What holds a thing, and the name, key or index there."""


def find_places(
    holders: Iterable[GuardSource], kept: Iterable[StateSnapshot]
) -> dict[int, list[Place]]:
    """The places of everything that a forward reaches, by its id."""
    found: dict[int, list[Place]] = {}
    fields = set()
    for holder in holders:
        if holder.kind == "fields":
            fields.add(id(_fields_of(holder.thing)))
        for owner, name, value in _held_values(holder):
            found.setdefault(id(value), []).append((owner, name))
    for one in kept:
        if id(one.thing) in fields or not isinstance(one.thing, dict | list):
            continue
        keyed = one.thing.items() if isinstance(one.thing, dict) else enumerate(one.thing)
        for name, value in keyed:
            found.setdefault(id(value), []).append((one.thing, name))
    return found


def _fields_of(thing: Any) -> dict[str, Any]:
    return thing if isinstance(thing, dict) else vars(thing)


def _held_values(holder: GuardSource) -> Iterator[tuple[Any, Any, Any]]:
    """What a holder has: where it can be put again, the name there, the value."""
    if holder.kind == "fields":
        fields = _fields_of(holder.thing)
        yield from ((fields, name, value) for name, value in fields.items())
    elif holder.kind == "class":
        for base in holder.thing.__mro__[:-1]:
            yield from ((base, name, value) for name, value in vars(base).items())
    elif holder.kind == "cells":
        for name, cell in cells_by_name(holder.thing).items():
            yield cell, name, cell_contents(cell)


def _put_item(owner: Any, name: Any, value: Any) -> None:
    """Puts a value into a place."""
    if isinstance(owner, types.CellType):
        owner.cell_contents = value
    elif isinstance(owner, type):
        setattr(owner, name, value)
    elif isinstance(owner, dict):
        dict.__setitem__(owner, name, value)
    else:
        list.__setitem__(owner, name, value)


def _make_probe(thing: Any) -> Any:
    """What notes reads as a list, deque or dictionary; None for another thing."""
    if type(thing) is list:
        return _ProbeList([None])
    if type(thing) is collections.deque:
        return _ProbeDeque([None], thing.maxlen)
    return _ProbeDict(thing) if type(thing) is dict else None
