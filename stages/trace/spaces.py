"""What a forward may read of a user's classes, modules and functions, by the names in its code.

Reads of these cannot be recorded as those of objects are. A space is such a thing with its names;
a name of it that stands in code that ran, or is given as a text there, counts as read.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from tightfit.stages.device.readings import ABSENT, held_by, installed, made_at_run_time
from tightfit.stages.trace.codes import imported, looks_up_names, names_of
from tightfit.stages.trace.functions import defaults_of, of_plan, own_code
from tightfit.stages.trace.holders import Holder, Place, is_dunder

_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)
_OF_TUPLES = ("_fields", "_field_defaults")
"""What a class of named tuples is made of."""
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Tensor)

Found = Callable[[Any, Place, str], Any]


@dataclass
class _Space:
    """A thing with names, its holder, and the step from its place to what stands under a name."""

    thing: Any
    holder: Holder
    step: str
    known: dict[str, Any]


class Spaces:
    """The classes, modules and functions that a forward reaches.

    `found` is told each value that counts as read; `holders` gets those that hold one.
    """

    def __init__(self, holders: dict[tuple[str, int], Holder], found: Found) -> None:
        self._holders = holders
        self._found = found
        self._names: set[str] = set()
        self._every = False
        self._spaces: dict[int, _Space] = {}
        self._late: list[str] = []

    def enter_class(self, kind: type, place: Place) -> None:
        """A class of the user's with those that it is made of."""
        if issubclass(kind, Enum):
            self._enter_members(kind, place)
            return
        for index, base in enumerate(kind.__mro__):
            if users_class(base):
                known = {k: v for k, v in vars(base).items() if _is_of_class(k, v)}
                holder = Holder((*place, ("base", index)), base.__name__, "class", base, known)
                self._enter(holder, known)
                for name in _OF_TUPLES if issubclass(base, tuple) else ():
                    if name in known:
                        self._holders["class", -id(base)].read(name)
        if users_class(type(kind)):
            self.enter_class(type(kind), (*place, ("type",)))

    def _enter_members(self, kind: type[Enum], place: Place) -> None:
        """All members of an enumeration of the user's."""
        members = vars(kind).get("_member_map_", {})
        key = ("fields", id(members))
        if not users_class(kind) or key in self._holders:
            return
        place = (*place, ("class", "_member_map_"))
        self._holders[key] = holder = Holder(place, kind.__name__, "fields", members, dict(members))
        for name, member in members.items():
            holder.read(name)
            for part, value in held_by(member).items():
                shown = f"{kind.__name__}.{name}.{part}"
                self._found(value, (*place, ("key", name), ("field", part)), shown)

    def enter_module(self, module: types.ModuleType, place: Place) -> None:
        """A Python module of the user's."""
        if users_module(module):
            fields = vars(module)
            holder = Holder(place, module.__name__, "fields", module, {})
            self._enter(holder, fields)

    def enter_function(self, function: types.FunctionType, place: Place) -> None:
        """A function of the user's, with what was set on it."""
        known = {name: value for name, value in vars(function).items() if not is_dunder(name)}
        if known:
            holder = Holder(place, function.__name__, "fields", function, known)
            self._enter(holder, known)

    def _enter(self, holder: Holder, known: dict[str, Any]) -> None:
        thing = holder.thing
        if id(thing) in self._spaces:
            return
        key = (holder.kind, id(vars(thing)) if holder.kind == "fields" else -id(thing))
        holder = self._holders.setdefault(key, holder)
        step = "global" if holder.place[-1][0] in ("python", "globals") else "field"
        step = "class" if holder.kind == "class" else step
        self._spaces[id(thing)] = space = _Space(thing, holder, step, known)
        self._note(space, self._names)

    def ran(self, frame: types.FrameType) -> None:
        """Takes the names that the code of a frame has."""
        code = frame.f_code
        names = names_of(code)
        self._every = self._every or looks_up_names(code)
        new = names - self._names
        self._names |= new
        for name in imported(code, frame.f_globals):
            self._import(name)
        for space in list(self._spaces.values()):
            self._note(space, self._names if self._every else new)

    def _import(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is None:
            self._late.append(name)
        else:
            self.enter_module(module, (("python", name),))

    def _note(self, space: _Space, names: set[str]) -> None:
        for name in list(space.known) if self._every else names & space.known.keys():
            value = space.known[name]
            if name in space.holder.reads or is_dunder(name):
                continue
            if name not in self._names and not is_plain(value):
                continue
            space.holder.known.setdefault(name, value)
            space.holder.read(name)
            shown = f"{space.holder.shown}.{name}" if space.holder.shown else name
            self._found(value, (*space.holder.place, (space.step, name)), shown)

    def note_defaults(self, function: Any, place: Place) -> None:
        """The defaults of the arguments of a function that ran."""
        known = defaults_of(function)
        key = ("defaults", id(function))
        if known and key not in self._holders:
            holder = Holder(place, function.__name__, "defaults", function, known)
            self._holders[key] = holder
            for name, value in known.items():
                holder.read(name)
                shown = f"the default of {name} of {function.__name__}"
                self._found(value, (*place, ("default", name)), shown)

    def finish(self) -> list[tuple[str, str]]:
        """Takes the modules that the forward itself imported, and puts back what it set: how the
        thing is shown, and the name."""
        for name in self._late:
            if name in sys.modules:
                self._import(name)
        return [
            (space.holder.shown, name)
            for space in self._spaces.values()
            for name, before in list(space.holder.reads.items())
            if not isinstance(space.holder.thing, dict) and _put_back(space.thing, name, before)
        ]


def _put_back(thing: Any, name: str, before: Any) -> bool:
    now = vars(thing).get(name, ABSENT)
    if now is before or before is ABSENT or isinstance(before, _CODE) or _same(before, now):
        return False
    setattr(thing, name, before)
    return True


def is_data(value: Any) -> bool:
    """True for what is no function, class or module."""
    return not isinstance(value, (*_CODE, torch.nn.Module))


def is_plain(value: Any, depth: int = 0) -> bool:
    """True for plain data: numbers, texts, tensors, and containers of such."""
    if value is None or isinstance(value, _PLAIN):
        return True
    if not isinstance(value, list | tuple | set | frozenset | dict) or depth > 6:
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return all(is_plain(item, depth + 1) for item in items)


def users_module(module: types.ModuleType) -> bool:
    """True for a module that is of no installed package, nor of Python's, nor of tightfit's."""
    top = module.__name__.partition(".")[0]
    if of_plan(vars(module)) or top in ("torch", *sys.builtin_module_names):
        return False
    path = getattr(module, "__path__", None)
    file = getattr(module, "__file__", None) or next(iter(path or ()), None)
    if file is None:
        return getattr(module, "__spec__", None) is None
    return not installed(file) and not own_code(file)


def users_class(kind: type) -> bool:
    """True for a class that a module of the user's made."""
    if kind.__module__ == "builtins":
        return False
    if made_at_run_time(kind):
        return True
    module = sys.modules.get(kind.__module__)
    return module is None or users_module(module)


def _is_of_class(name: str, value: Any) -> bool:
    if is_dunder(name) or name.startswith("_abc_"):
        return False
    return not hasattr(type(value), "__get__") and not isinstance(value, types.ModuleType)


def _same(one: Any, other: Any) -> bool:
    return is_plain(one) and type(one) is type(other) and repr(one) == repr(other)


def data_named(names: set[str], among: dict[str, Any]) -> Iterator[str]:
    """The names that are those of plain data; where none is, all that are."""
    plain = [name for name, value in among.items() if not is_dunder(name) and is_plain(value)]
    yield from [name for name in plain if name in names] or plain
