"""What a forward may read of a user's classes, modules and functions, by the names in its code.

Reads of these cannot be recorded as those of objects are. A space is such a thing with its names;
a name of it that stands in code that ran, or is given as a text there, counts as read.
"""

from __future__ import annotations

import functools
import queue
import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

from tightfit.stages.runtime.guards.encode import (
    MISSING,
    bound_object,
    guarded_contents,
    is_installed_file,
    is_run_time_class,
    slot_values,
)
from tightfit.stages.trace.code_inspection import (
    argument_defaults,
    code_names,
    imported_modules,
    is_plan_namespace,
    is_tightfit_code,
    uses_dynamic_attributes,
)
from tightfit.stages.trace.guards.guard_source import GuardPath, GuardSource, is_dunder
from tightfit.util.errors import ModelError

_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)
_NAMED_TUPLE_FIELDS = ("_fields", "_field_defaults")
"""What a class of named tuples is made of."""
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Tensor)

ValueVisitor = Callable[[Any, GuardPath, str], Any]


@dataclass
class _Namespace:
    """A thing with names, its holder, and the step from its place to what stands under a name."""

    thing: Any
    holder: GuardSource
    step: str
    known: dict[str, Any]


class Namespaces:
    """The classes, modules and functions that a forward reaches.

    `found` is told each value that counts as read; `holders` gets those that hold one.
    """

    def __init__(self, holders: dict[tuple[str, int], GuardSource], found: ValueVisitor) -> None:
        self._holders = holders
        self._found = found
        self._names: set[str] = set()
        self._every = False
        self._spaces: dict[int, _Namespace] = {}
        self._late: list[str] = []

    def enter_class(self, kind: type, place: GuardPath) -> None:
        """A class of the user's with those that it is made of."""
        if issubclass(kind, Enum):
            self._enter_members(kind, place)
            return
        for index, base in enumerate(kind.__mro__):
            if is_user_class(base):
                known = {k: v for k, v in vars(base).items() if _is_class_data(k, v)}
                holder = GuardSource((*place, ("base", index)), base.__name__, "class", base, known)
                self._enter(holder, known)
                for name in _NAMED_TUPLE_FIELDS if issubclass(base, tuple) else ():
                    if name in known:
                        self._holders["class", -id(base)].read(name)
        if is_user_class(type(kind)):
            self.enter_class(type(kind), (*place, ("type",)))

    def _enter_members(self, kind: type[Enum], place: GuardPath) -> None:
        """All members of an enumeration of the user's."""
        members = vars(kind).get("_member_map_", {})
        key = ("fields", id(members))
        if not is_user_class(kind) or key in self._holders:
            return
        place = (*place, ("class", "_member_map_"))
        self._holders[key] = holder = GuardSource(
            place, kind.__name__, "fields", members, dict(members)
        )
        for name, member in members.items():
            holder.read(name)
            for part, value in guarded_contents(member).items():
                shown = f"{kind.__name__}.{name}.{part}"
                self._found(value, (*place, ("key", name), ("field", part)), shown)

    def enter_module(self, module: types.ModuleType, place: GuardPath) -> None:
        """A Python module of the user's."""
        if is_user_module(module):
            fields = vars(module)
            holder = GuardSource(place, module.__name__, "fields", module, {})
            self._enter(holder, fields)

    def enter_function(self, function: types.FunctionType, place: GuardPath) -> None:
        """A function of the user's, with what was set on it."""
        known = {name: value for name, value in vars(function).items() if not is_dunder(name)}
        if known:
            holder = GuardSource(place, function.__name__, "fields", function, known)
            self._enter(holder, known)

    def _enter(self, holder: GuardSource, known: dict[str, Any]) -> None:
        thing = holder.thing
        if id(thing) in self._spaces:
            return
        key = (holder.kind, id(vars(thing)) if holder.kind == "fields" else -id(thing))
        holder = self._holders.setdefault(key, holder)
        step = "global" if holder.place[-1][0] in ("python", "globals") else "field"
        step = "class" if holder.kind == "class" else step
        self._spaces[id(thing)] = space = _Namespace(thing, holder, step, known)
        self._note(space, self._names)

    def ran(self, frame: types.FrameType) -> None:
        """Takes the names that the code of a frame has."""
        code = frame.f_code
        names = code_names(code)
        self._every = self._every or uses_dynamic_attributes(code)
        new = names - self._names
        self._names |= new
        for name in imported_modules(code, frame.f_globals):
            self._import(name)
        for space in list(self._spaces.values()):
            self._note(space, self._names if self._every else new)

    def _import(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is None:
            self._late.append(name)
        else:
            self.enter_module(module, (("python", name),))

    def _note(self, space: _Namespace, names: set[str]) -> None:
        for name in list(space.known) if self._every else names & space.known.keys():
            value = space.known[name]
            if name in space.holder.reads or is_dunder(name):
                continue
            if name not in self._names and not is_plain_data(value):
                continue
            space.holder.known.setdefault(name, value)
            space.holder.read(name)
            shown = f"{space.holder.shown}.{name}" if space.holder.shown else name
            self._found(value, (*space.holder.place, (space.step, name)), shown)

    def note_defaults(self, function: Any, place: GuardPath) -> None:
        """The defaults of the arguments of a function that ran."""
        known = argument_defaults(function)
        key = ("defaults", id(function))
        if known and key not in self._holders:
            holder = GuardSource(place, function.__name__, "defaults", function, known)
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
            if not isinstance(space.holder.thing, dict)
            and _restore_attribute(space.thing, name, before)
        ]


def _restore_attribute(thing: Any, name: str, before: Any) -> bool:
    now = vars(thing).get(name, MISSING)
    if (
        now is before
        or before is MISSING
        or isinstance(before, _CODE)
        or _is_same_plain_data(before, now)
    ):
        return False
    setattr(thing, name, before)
    return True


def is_data(value: Any) -> bool:
    """True for what is no function, class or module."""
    return not isinstance(value, (*_CODE, torch.nn.Module))


def is_plain_data(value: Any, depth: int = 0) -> bool:
    """True for plain data: numbers, texts, tensors, and containers of such."""
    if value is None or isinstance(value, _PLAIN):
        return True
    if not isinstance(value, list | tuple | set | frozenset | dict) or depth > 6:
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return all(is_plain_data(item, depth + 1) for item in items)


def is_user_module(module: types.ModuleType) -> bool:
    """True for a module that is of no installed package, nor of Python's, nor of tightfit's."""
    top = module.__name__.partition(".")[0]
    if is_plan_namespace(vars(module)) or top in ("torch", *sys.builtin_module_names):
        return False
    path = getattr(module, "__path__", None)
    file = getattr(module, "__file__", None) or next(iter(path or ()), None)
    if file is None:
        return getattr(module, "__spec__", None) is None
    return not is_installed_file(file) and not is_tightfit_code(file)


def is_user_class(kind: type) -> bool:
    """True for a class that a module of the user's made."""
    if kind.__module__ == "builtins":
        return False
    if is_run_time_class(kind):
        return True
    module = sys.modules.get(kind.__module__)
    return module is None or is_user_module(module)


def _is_class_data(name: str, value: Any) -> bool:
    if is_dunder(name) or name.startswith("_abc_"):
        return False
    return not hasattr(type(value), "__get__") and not isinstance(value, types.ModuleType)


def _is_same_plain_data(one: Any, other: Any) -> bool:
    return is_plain_data(one) and type(one) is type(other) and repr(one) == repr(other)


def plain_data_names(names: set[str], among: dict[str, Any]) -> Iterator[str]:
    """The names that are those of plain data; where none is, all that are."""
    plain = [name for name, value in among.items() if not is_dunder(name) and is_plain_data(value)]
    yield from [name for name in plain if name in names] or plain


_CONSUMED_TYPES = (queue.Queue, queue.SimpleQueue, random.SystemRandom)
_NUMPY_BIT_SOURCES = ("BitGenerator", "SeedSequence")
_CONTAINERS = (list, tuple, set, frozenset)
_MAX_DEPTH = 6


class StatefulIteratorError(ModelError):
    """The forward reads what it would use up."""


def reject_stateful_iterators(value: Any, shown: str) -> None:
    """Raises AdvancingError where a value that is read, or something in it, is used up by those who
    take from it. Iterators of a user's class have fields, which are watched."""
    found = _find_stateful_iterator(value)
    if found is not None:
        raise StatefulIteratorError(
            f"the forward reads {shown or 'a value'}, which is or holds what is used up where it "
            f"is taken from ({type(found).__name__}), and a plan would take nothing; take from it "
            "outside of the model, and pass in what was taken"
        )


def _find_stateful_iterator(value: Any, depth: int = 0) -> Any:
    if isinstance(value, _CONSUMED_TYPES) or _is_numpy_bit_source(value):
        return value
    if isinstance(value, Iterator):
        watched = hasattr(value, "__dict__") and is_user_class(type(value))
        return None if watched or isinstance(value, nn.Module) else value
    if isinstance(value, types.AsyncGeneratorType | types.CoroutineType):
        return value
    for item in _contained_values(value) if depth < _MAX_DEPTH else ():
        found = _find_stateful_iterator(item, depth + 1)
        if found is not None:
            return found
    return None


def _contained_values(value: Any) -> Any:
    if isinstance(value, dict | types.MappingProxyType):
        return value.values()
    if isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.SimpleNamespace):
        return vars(value).values()
    return (bound_object(value), *slot_values(value).values())


def _is_numpy_bit_source(value: Any) -> bool:
    """True for what NumPy's generators draw from."""
    numpy = sys.modules.get("numpy")
    kinds = (
        () if numpy is None else tuple(getattr(numpy.random, name) for name in _NUMPY_BIT_SOURCES)
    )
    return isinstance(value, kinds)
