"""Looks up what the parts of a thing are now, and takes down where each stands."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .lists import Lists
from .places import cells, content, defaults, of_class
from .readings import ABSENT, class_of

_REGISTERED = ("_parameters", "_buffers", "_modules")


def _look_up_field(thing: Any, name: str, lists: Lists) -> Any:
    fields = thing if type(thing) is dict else vars(thing)
    value = fields.get(name, ABSENT)
    lists.fields.add(fields, name, value)
    if value is not ABSENT or not isinstance(thing, torch.nn.Module):
        return value
    if of_class(class_of(thing), name)[0] is ABSENT:
        for field in _REGISTERED:
            registered = fields[field]
            if name in registered and registered[name] is not None:
                return registered[name]
            lists.fields.add(registered, name, registered.get(name, ABSENT))
    return value


def _look_up_names(thing: Any, name: str, lists: Lists) -> Any:
    fields = vars(thing)
    lists.keys.append((fields, list(fields)))
    return sorted(map(str, fields))


def _look_up_class(thing: Any, name: str, lists: Lists) -> Any:
    kind = class_of(thing)
    value, owner = of_class(kind, name)
    for base in kind.__mro__[:-1]:
        if base is owner:
            lists.classes.add(vars(base), name, value)
            break
        if base is not torch.nn.Module:
            lists.classes.add(vars(base), name, ABSENT)
    return value


def _look_up_cell(thing: Any, name: str, lists: Lists) -> Any:
    if not inspect.isfunction(thing):
        return ABSENT
    cell = cells(thing).get(name)
    if cell is None:
        return ABSENT
    value = content(cell)
    lists.cells.append((cell, value))
    return value


def _look_up_default(thing: Any, name: str, lists: Lists) -> Any:
    if not inspect.isfunction(thing):
        return ABSENT
    lists.functions.append((thing, thing.__defaults__, thing.__kwdefaults__))
    if thing.__kwdefaults__:
        named = thing.__kwdefaults__
        lists.containers.append((named, list(named.values()), list(named)))
    return defaults(thing).get(name, ABSENT)


def _look_up_code(thing: Any, name: str, lists: Lists) -> Any:
    return thing


LOOKS = {
    "fields": _look_up_field,
    "names": _look_up_names,
    "class": _look_up_class,
    "cells": _look_up_cell,
    "defaults": _look_up_default,
    "code": _look_up_code,
}
"""How to look up a part, by the kind of its holder."""
