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

from .encode import (
    MISSING,
    bound_object,
    encode_value,
    original_class,
    slot_values,
    underlying_function,
)


def find_source(place: list[list[Any]], modules: Mapping[str, Any]) -> Any:
    """The thing at a place, ABSENT where there is none."""
    thing = path_root(place, modules)
    for step in place[1:]:
        if thing is MISSING:
            break
        thing = PATH_STEPS[step[0]](thing, *step[1:])
    return thing


def path_root(place: list[list[Any]], modules: Mapping[str, Any]) -> Any:
    """What the first step of a place names."""
    word, name = place[0]
    return modules.get(name, MISSING) if word == "module" else _import_module(name)


def _import_module(name: str) -> Any:
    """The names of a Python module; a name in a file imports nothing."""
    module = sys.modules.get(name)
    return MISSING if module is None else vars(module)


def _field(thing: Any, name: str) -> Any:
    found = getattr(thing, "__dict__", {}).get(name, MISSING)
    return slot_values(thing).get(name, MISSING) if found is MISSING else found


def class_attribute(kind: type, name: str) -> tuple[Any, type | None]:
    """What a class says of a name, without calling anything, and which of its bases says it."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name], base
    return MISSING, None


def _class(thing: Any, name: str) -> Any:
    return class_attribute(original_class(thing), name)[0]


def _key(thing: Any, written: Any) -> Any:
    if not isinstance(thing, dict | types.MappingProxyType):
        return MISSING
    if isinstance(written, str | int | type(None)):
        return thing.get(written, MISSING)
    return next((thing[key] for key in thing if encode_value(key) == written), MISSING)


def _item(thing: Any, index: int) -> Any:
    inside = isinstance(thing, list | tuple | collections.deque) and index < len(thing)
    return thing[index] if inside else MISSING


def _module_hook(thing: Any, field: str, number: int) -> Any:
    """A hook of a module by its place among those of its kind."""
    hooks = list(getattr(thing, "__dict__", {}).get(field, {}).values())
    return hooks[number] if number < len(hooks) else MISSING


def _global(thing: Any, name: str) -> Any:
    return thing.get(name, MISSING) if isinstance(thing, dict) else MISSING


def _globals(thing: Any) -> Any:
    return getattr(thing, "__globals__", MISSING)


def _cell(thing: Any, name: str) -> Any:
    cell = cells_by_name(thing).get(name)
    return MISSING if cell is None else cell_contents(cell)


def cells_by_name(function: Any) -> dict[str, types.CellType]:
    """The cells of a function's closure by name."""
    closure = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, closure, strict=True)) if closure else {}


def cell_contents(cell: types.CellType) -> Any:
    """What a cell holds, ABSENT where it holds nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _default(thing: Any, name: str) -> Any:
    return defaults_by_name(thing).get(name, MISSING)


def defaults_by_name(function: Any) -> dict[str, Any]:
    """The defaults of a function's arguments by name."""
    given = getattr(function, "__defaults__", None) or ()
    named = getattr(function, "__kwdefaults__", None) or {}
    count = function.__code__.co_argcount if given else 0
    names = function.__code__.co_varnames[count - len(given) : count] if given else ()
    return dict(zip(names, given, strict=True)) | named


def _base(thing: Any, index: int) -> Any:
    bases = original_class(thing).__mro__
    return bases[index] if index < len(bases) else MISSING


def _bound(thing: Any) -> Any:
    """What a method is of."""
    return thing.__self__ if inspect.ismethod(thing) else bound_object(thing)


def _partial_attribute(thing: Any, name: str) -> Any:
    """What a partial function or the like was made with: `func`, `args`, `keywords`; what a
    dictionary makes missing items with: `default_factory`; what sets a property: `fset`."""
    return getattr(thing, name, MISSING) if isinstance(thing, _PARTIAL_TYPES) else MISSING


_PARTIAL_TYPES: tuple[Any, ...] = (
    *(functools.partial, functools.partialmethod),
    functools.singledispatchmethod,
    collections.defaultdict,
    property,
)


def _type(thing: Any) -> Any:
    """The class of a class."""
    return type(original_class(thing))


def _function(value: Any) -> Any:
    """The function that a value runs, ABSENT where it runs none."""
    function = underlying_function(value)
    return function if inspect.isfunction(function) else MISSING


PATH_STEPS: dict[str, Any] = {
    "field": _field,
    "class": _class,
    "key": _key,
    "item": _item,
    "hook": _module_hook,
    "global": _global,
    "globals": _globals,
    "cell": _cell,
    "default": _default,
    "base": _base,
    "bound": _bound,
    "given": _partial_attribute,
    "type": _type,
    "function": _function,
}
