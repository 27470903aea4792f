"""Follows a place and takes down what stands at each step, so that a call sees when it moved."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any

import torch

from .encode import MISSING, instance_fields, original_class, slot_values
from .fast_compare import GuardTable
from .paths import (
    PATH_STEPS,
    cell_contents,
    cells_by_name,
    class_attribute,
    defaults_by_name,
    path_root,
)
from .paths import cells_by_name as cells_of

_REGISTRIES = ("_parameters", "_buffers", "_modules")


def _look_up_field(thing: Any, name: str, lists: GuardTable) -> Any:
    fields = thing if type(thing) is dict else vars(thing)
    value = fields.get(name, MISSING)
    lists.fields.add(fields, name, value)
    if value is not MISSING or not isinstance(thing, torch.nn.Module):
        return value
    if class_attribute(original_class(thing), name)[0] is MISSING:
        for field in _REGISTRIES:
            registered = fields[field]
            if name in registered and registered[name] is not None:
                return registered[name]
            lists.fields.add(registered, name, registered.get(name, MISSING))
    return value


def _look_up_names(thing: Any, name: str, lists: GuardTable) -> Any:
    fields = vars(thing)
    lists.keys.append((fields, list(fields)))
    return sorted(map(str, fields))


def _look_up_class(thing: Any, name: str, lists: GuardTable) -> Any:
    kind = original_class(thing)
    value, owner = class_attribute(kind, name)
    for base in kind.__mro__[:-1]:
        if base is owner:
            lists.classes.add(vars(base), name, value)
            break
        if base is not torch.nn.Module:
            lists.classes.add(vars(base), name, MISSING)
    return value


def _look_up_cell(thing: Any, name: str, lists: GuardTable) -> Any:
    if not inspect.isfunction(thing):
        return MISSING
    cell = cells_by_name(thing).get(name)
    if cell is None:
        return MISSING
    value = cell_contents(cell)
    lists.cells.append((cell, value))
    return value


def _look_up_default(thing: Any, name: str, lists: GuardTable) -> Any:
    if not inspect.isfunction(thing):
        return MISSING
    lists.functions.append((thing, thing.__defaults__, thing.__kwdefaults__))
    if thing.__kwdefaults__:
        named = thing.__kwdefaults__
        lists.containers.append((named, list(named.values()), list(named)))
    return defaults_by_name(thing).get(name, MISSING)


def _look_up_code(thing: Any, name: str, lists: GuardTable) -> Any:
    return thing


LOOKUPS = {
    "fields": _look_up_field,
    "names": _look_up_names,
    "class": _look_up_class,
    "cells": _look_up_cell,
    "defaults": _look_up_default,
    "code": _look_up_code,
}
"""How to look up a part, by the kind of its holder."""


def follow_path(place: list[list[Any]], modules: Mapping[str, Any], lists: GuardTable) -> Any:
    """The thing at a place, ABSENT where there is none."""
    thing = path_root(place, modules)
    for word, *rest in place[1:]:
        if thing is MISSING:
            break
        found = PATH_STEPS[word](thing, *rest)
        key = (id(thing), word, repr(rest))
        if word in _RECORDERS and key not in lists.noted:
            lists.noted.add(key)
            _RECORDERS[word](thing, *rest, found, lists)
        thing = found
    return thing


def _record_field(thing: Any, name: str, found: Any, lists: GuardTable) -> None:
    fields = instance_fields(thing)
    if isinstance(fields, dict) and name in fields:
        lists.fields.add(fields, name, found)
    else:
        lists.slots.append((thing, list(slot_values(thing).values())))


def _record_class(thing: Any, name: str, found: Any, lists: GuardTable) -> None:
    LOOKUPS["class"](thing, name, lists)


def _record_global(thing: Any, name: str, found: Any, lists: GuardTable) -> None:
    lists.fields.add(thing, name, found)


def _record_key(thing: Any, written: Any, found: Any, lists: GuardTable) -> None:
    for key, item in thing.items() if found is not MISSING else ():
        if item is found:
            column = lists.classes if isinstance(thing, types.MappingProxyType) else lists.fields
            column.add(thing, key, found)
            break


def _record_item(thing: Any, index: int, found: Any, lists: GuardTable) -> None:
    if not isinstance(thing, tuple):
        lists.containers.append((thing, list(thing), None))


def _record_cell(thing: Any, name: str, found: Any, lists: GuardTable) -> None:
    cell = cells_of(thing).get(name)
    if cell is not None:
        lists.cells.append((cell, cell_contents(cell)))


def _record_default(thing: Any, name: str, found: Any, lists: GuardTable) -> None:
    lists.functions.append((thing, thing.__defaults__, thing.__kwdefaults__))


def _record_base(thing: Any, index: int, found: Any, lists: GuardTable) -> None:
    if not isinstance(thing, type):
        lists.objects.append(thing)
        lists.kinds.append(type(thing))
    kind = original_class(thing)
    lists.orders.append((kind, kind.__mro__))


_RECORDERS: dict[str, Any] = {
    "field": _record_field,
    "class": _record_class,
    "global": _record_global,
    "key": _record_key,
    "item": _record_item,
    "cell": _record_cell,
    "default": _record_default,
    "base": _record_base,
}
