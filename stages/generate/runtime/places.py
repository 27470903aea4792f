"""Finds again, from a model, what its forward read: a place is a list of steps.

The first step names a module of the model (`["module", path]`) or of Python (`["python", name]`). A
further step goes to a field, an item, what a class says, one of the classes that a thing or class
is made of, or a function's globals, closure or defaults.
"""

from __future__ import annotations

import collections
import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

from .readings import ABSENT, bound_to, class_of, encode, slots_of, underlying


def find(place: list[list[Any]], modules: Mapping[str, Any]) -> Any:
    """The thing at a place, ABSENT where there is none."""
    thing = begin(place, modules)
    for step in place[1:]:
        if thing is ABSENT:
            break
        thing = STEPS[step[0]](thing, *step[1:])
    return thing


def begin(place: list[list[Any]], modules: Mapping[str, Any]) -> Any:
    """What the first step of a place names."""
    word, name = place[0]
    return modules.get(name, ABSENT) if word == "module" else _python(name)


def _python(name: str) -> Any:
    """The names of a Python module; a name in a file imports nothing."""
    module = sys.modules.get(name)
    return ABSENT if module is None else vars(module)


def _field(thing: Any, name: str) -> Any:
    found = getattr(thing, "__dict__", {}).get(name, ABSENT)
    return slots_of(thing).get(name, ABSENT) if found is ABSENT else found


def of_class(kind: type, name: str) -> tuple[Any, type | None]:
    """What a class says of a name, without calling anything, and which of its bases says it."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name], base
    return ABSENT, None


def _class(thing: Any, name: str) -> Any:
    return of_class(class_of(thing), name)[0]


def _key(thing: Any, written: Any) -> Any:
    if not isinstance(thing, dict | types.MappingProxyType):
        return ABSENT
    if isinstance(written, str | int | type(None)):
        return thing.get(written, ABSENT)
    return next((thing[key] for key in thing if encode(key) == written), ABSENT)


def _item(thing: Any, index: int) -> Any:
    inside = isinstance(thing, list | tuple | collections.deque) and index < len(thing)
    return thing[index] if inside else ABSENT


def _global(thing: Any, name: str) -> Any:
    return thing.get(name, ABSENT) if isinstance(thing, dict) else ABSENT


def _globals(thing: Any) -> Any:
    return getattr(thing, "__globals__", ABSENT)


def _cell(thing: Any, name: str) -> Any:
    cell = cells(thing).get(name)
    return ABSENT if cell is None else content(cell)


def cells(function: Any) -> dict[str, types.CellType]:
    """The cells of a function's closure by name."""
    closure = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, closure, strict=True)) if closure else {}


def content(cell: types.CellType) -> Any:
    """What a cell holds, ABSENT where it holds nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def _default(thing: Any, name: str) -> Any:
    return defaults(thing).get(name, ABSENT)


def defaults(function: Any) -> dict[str, Any]:
    """The defaults of a function's arguments by name."""
    given = getattr(function, "__defaults__", None) or ()
    named = getattr(function, "__kwdefaults__", None) or {}
    count = function.__code__.co_argcount if given else 0
    names = function.__code__.co_varnames[count - len(given) : count] if given else ()
    return dict(zip(names, given, strict=True)) | named


def _base(thing: Any, index: int) -> Any:
    bases = class_of(thing).__mro__
    return bases[index] if index < len(bases) else ABSENT


def _bound(thing: Any) -> Any:
    """What a method is of."""
    return thing.__self__ if inspect.ismethod(thing) else bound_to(thing)


def _given(thing: Any, name: str) -> Any:
    """What a partial function or the like was made with: `func`, `args`, `keywords`; what a
    dictionary makes missing items with: `default_factory`."""
    return getattr(thing, name, ABSENT) if isinstance(thing, _GIVEN) else ABSENT


_GIVEN: tuple[Any, ...] = (
    *(functools.partial, functools.partialmethod),
    functools.singledispatchmethod,
    collections.defaultdict,
)


def _type(thing: Any) -> Any:
    """The class of a class."""
    return type(class_of(thing))


def _function(value: Any) -> Any:
    """The function that a value runs, ABSENT where it runs none."""
    function = underlying(value)
    return function if inspect.isfunction(function) else ABSENT


STEPS: dict[str, Any] = {
    "field": _field,
    "class": _class,
    "key": _key,
    "item": _item,
    "global": _global,
    "globals": _globals,
    "cell": _cell,
    "default": _default,
    "base": _base,
    "bound": _bound,
    "given": _given,
    "type": _type,
    "function": _function,
}
