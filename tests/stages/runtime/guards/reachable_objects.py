"""Objects that a forward reaches in many ways: what it reads of them, and what then moves."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import operator
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from tests.stages.runtime.guards.settings import far


class Thing:
    """An object with a number."""

    def __init__(self) -> None:
        self.gain = 2.0

    def read(self) -> float:
        return self.gain

    def count(self) -> float:
        self.gain += 1.0
        return self.gain

    def plus(self, amount: float) -> float:
        return self.gain + amount


class Other(Thing):
    """Another class of such objects."""


class Factor(type):
    """A class of classes, with a number."""

    factor = 2.0


class OfFactor(metaclass=Factor):
    """A class whose class has a number."""


class Member(enum.Enum):
    """A member that holds a dictionary, and a number beside it."""

    ONE = "one"

    def __init__(self, name: str) -> None:
        self.table = {"a": 1.0}
        self.gain = 2.0


def member() -> Member:
    Member.ONE.table, Member.ONE.gain = {"a": 1.0}, 2.0
    return Member.ONE


class Settings:
    """Fields that stand in a dictionary of their own."""

    def __init__(self, **fields: Any) -> None:
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, name: str) -> Any:
        return object.__getattribute__(self, "_fields")[name]

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_fields")[name] = value


class Renamed:
    """A field that has a second name."""

    names: ClassVar = {"amount": "gain"}

    def __init__(self) -> None:
        self.gain = 2.0

    def __getattribute__(self, name: str) -> Any:
        name = super().__getattribute__("names").get(name, name)
        return super().__getattribute__(name)


class Prefixed:
    """A field whose name is made."""

    def __init__(self) -> None:
        self._gain = 2.0

    def __getattr__(self, name: str) -> Any:
        return object.__getattribute__(self, "_" + name)


class Attributes(dict[str, Any]):
    """A dictionary whose items are read as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Number(float):
    """A number with something of its own."""


def nested(depth: int) -> Thing:
    thing = Thing()
    for _ in range(depth):
        outer: Any = Thing()
        outer.inner = thing
        thing = outer
    return thing


def innermost(thing: Any) -> Any:
    while hasattr(thing, "inner"):
        thing = thing.inner
    return thing


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inside


@timed
@timed
def decorated() -> float:
    return far.amount()


class Model(nn.Module):
    """A linear layer times what a function makes of what the model holds."""

    def __init__(self, held: Any, reads: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.held, self.reads = held, reads

    @timed
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.reads(self.held)


class Derived(Model):
    """A model whose forward and its base's are decorated alike."""

    @timed
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def swap(held: Any) -> None:
    held.__class__ = Other


def number() -> Number:
    made = Number(1.0)
    made.gain = 2.0  # type: ignore[attr-defined]
    return made


def set_gain(thing: Any) -> None:
    thing.gain = 3.0


SHOWN = {"a": 1.0}


def shown() -> dict[str, float]:
    """A dictionary that others show."""
    SHOWN.clear()
    SHOWN.update(a=1.0)
    return SHOWN


READS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], None]]] = {
    "a bound method": (lambda: Thing().read, lambda h: h(), lambda h: set_gain(h.__self__)),
    "a bound method in a list": (
        lambda: [Thing().read],
        lambda h: h[0](),
        lambda h: set_gain(h[0].__self__),
    ),
    "an argument of a partial": (
        lambda: functools.partial(Thing.read, Thing()),
        lambda h: h(),
        lambda h: set_gain(h.args[0]),
    ),
    "a keyword of a partial": (
        lambda: functools.partial(lambda thing: thing.gain, thing=Thing()),
        lambda h: h(),
        lambda h: set_gain(h.keywords["thing"]),
    ),
    "a partial of a bound method": (
        lambda: functools.partial(Thing().plus, 1.0),
        lambda h: h(),
        lambda h: set_gain(h.func.__self__),
    ),
    "far inside": (
        lambda: nested(20),
        lambda h: innermost(h).gain,
        lambda h: set_gain(innermost(h)),
    ),
    "other names": (Thing, lambda h: sum(vars(h).values()), lambda h: setattr(h, "more", 1.0)),
    "a chain of dictionaries": (
        lambda: collections.ChainMap({}, {"a": 1.0}),
        lambda h: h["a"],
        lambda h: h.maps[1].update(a=2.0),
    ),
    "a proxy of a dictionary": (
        lambda: types.MappingProxyType(shown()),
        lambda h: h["a"],
        lambda h: SHOWN.update(a=2.0),
    ),
    "an object behind a proxy": (
        lambda: types.MappingProxyType({"a": Thing()}),
        lambda h: h["a"].gain,
        lambda h: set_gain(h["a"]),
    ),
    "values of a dictionary": (
        lambda: shown().values(),
        lambda h: sum(h),
        lambda h: SHOWN.update(a=2.0),
    ),
    "items of a dictionary": (
        lambda: shown().items(),
        lambda h: sum(value for _, value in h),
        lambda h: SHOWN.update(a=2.0),
    ),
    "keys of a dictionary": (
        lambda: shown().keys(),
        lambda h: float(len(h)),
        lambda h: SHOWN.update(more=2.0),
    ),
    "a view of bytes": (
        lambda: memoryview(bytearray(b"ab")),
        lambda h: h[0] / 100,
        lambda h: h.__setitem__(0, 99),
    ),
    "get of a dictionary": (
        lambda: shown().get,
        lambda h: h("a"),
        lambda h: SHOWN.update(a=2.0),
    ),
    "an item of a list by its method": (
        lambda: [1.0, 2.0].__getitem__,
        lambda h: h(0),
        lambda h: h.__self__.insert(0, 3.0),
    ),
    "the length of a list by its method": (
        lambda: [1.0, 2.0].__len__,
        lambda h: float(h()),
        lambda h: h.__self__.append(3.0),
    ),
    "get of a dictionary with an object": (
        lambda: {"a": Thing()}.get,
        lambda h: h("a").gain,
        lambda h: set_gain(h("a")),
    ),
    "a copy": (Thing, lambda h: copy.deepcopy(h).gain, set_gain),
    "a class of a class": (
        lambda: None,
        lambda h: OfFactor.factor,
        lambda h: setattr(Factor, "factor", 3.0),
    ),
    "the class of an object": (Thing, lambda h: 2.0 if isinstance(h, Other) else 1.0, swap),
    "what object.__getattribute__ takes": (
        lambda: Settings(gain=2.0),
        lambda h: h.gain,
        lambda h: setattr(h, "gain", 3.0),
    ),
    "what stands under another name": (
        Renamed,
        lambda h: h.amount,
        lambda h: setattr(h, "gain", 3.0),
    ),
    "what stands under a name that is made": (
        Prefixed,
        lambda h: h.gain,
        lambda h: setattr(h, "_gain", 3.0),
    ),
    "the code of a function": (
        lambda: types.FunctionType((lambda: 2.0).__code__, globals()),
        lambda h: h(),
        lambda h: setattr(h, "__code__", (lambda: 3.0).__code__),
    ),
    "items as attributes": (
        lambda: Attributes(gain=2.0),
        lambda h: h.gain,
        lambda h: h.update(gain=3.0),
    ),
    "an attribute of a number": (number, lambda h: h.gain, set_gain),
    "files away": (
        lambda: None,
        lambda h: far.amount(),
        lambda h: setattr(far.SETTINGS, "level", 5.0),
    ),
    "behind decorators": (
        lambda: None,
        lambda h: decorated(),
        lambda h: setattr(far.SETTINGS, "level", 5.0),
    ),
    "a table of a member": (
        member,
        lambda h: h.table["a"],
        lambda h: h.table.update(a=2.0),
    ),
    "a number of a member": (member, lambda h: h.gain, set_gain),
    "a member of a class": (member, lambda h: Member.ONE.gain, set_gain),
    "what makes missing items": (
        lambda: collections.defaultdict(lambda: 2.0),
        lambda h: h.default_factory(),
        lambda h: setattr(h, "default_factory", lambda: 3.0),
    ),
    "a getter of items": (
        lambda: [operator.itemgetter(0)],
        lambda h: h[0]((1.0, 2.0)),
        lambda h: h.insert(0, operator.itemgetter(1)),
    ),
    "an object of a class made at run time": (
        lambda: dataclasses.make_dataclass("Made", ["gain"])(2.0),
        lambda h: h.gain,
        set_gain,
    ),
}
