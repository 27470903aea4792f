"""Follows a place and takes down what stands at each step, so that a call sees when it moved."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from .lists import Lists
from .looks import LOOKS
from .places import STEPS, begin, content
from .places import cells as cells_of
from .readings import ABSENT, class_of, fields_of, slots_of


def follow(place: list[list[Any]], modules: Mapping[str, Any], lists: Lists) -> Any:
    """The thing at a place, ABSENT where there is none."""
    thing = begin(place, modules)
    for word, *rest in place[1:]:
        if thing is ABSENT:
            break
        found = STEPS[word](thing, *rest)
        key = (id(thing), word, repr(rest))
        if word in _NOTES and key not in lists.noted:
            lists.noted.add(key)
            _NOTES[word](thing, *rest, found, lists)
        thing = found
    return thing


def _field(thing: Any, name: str, found: Any, lists: Lists) -> None:
    fields = fields_of(thing)
    if isinstance(fields, dict) and name in fields:
        lists.fields.add(fields, name, found)
    else:
        lists.slots.append((thing, list(slots_of(thing).values())))


def _class(thing: Any, name: str, found: Any, lists: Lists) -> None:
    LOOKS["class"](thing, name, lists)


def _global(thing: Any, name: str, found: Any, lists: Lists) -> None:
    lists.fields.add(thing, name, found)


def _key(thing: Any, written: Any, found: Any, lists: Lists) -> None:
    for key, item in thing.items() if found is not ABSENT else ():
        if item is found:
            column = lists.classes if isinstance(thing, types.MappingProxyType) else lists.fields
            column.add(thing, key, found)
            break


def _item(thing: Any, index: int, found: Any, lists: Lists) -> None:
    if not isinstance(thing, tuple):
        lists.containers.append((thing, list(thing), None))


def _cell(thing: Any, name: str, found: Any, lists: Lists) -> None:
    cell = cells_of(thing).get(name)
    if cell is not None:
        lists.cells.append((cell, content(cell)))


def _default(thing: Any, name: str, found: Any, lists: Lists) -> None:
    lists.functions.append((thing, thing.__defaults__, thing.__kwdefaults__))


def _base(thing: Any, index: int, found: Any, lists: Lists) -> None:
    if not isinstance(thing, type):
        lists.objects.append(thing)
        lists.kinds.append(type(thing))
    kind = class_of(thing)
    lists.orders.append((kind, kind.__mro__))


_NOTES: dict[str, Any] = {
    "field": _field,
    "class": _class,
    "global": _global,
    "key": _key,
    "item": _item,
    "cell": _cell,
    "default": _default,
    "base": _base,
}
