"""Where the code that a forward ran is found again, so that other code in its place is noticed."""

from __future__ import annotations

import sys
import types
from typing import Any

from tightfit.stages.device.readings import ABSENT, is_context
from tightfit.stages.trace.codes import nested
from tightfit.stages.trace.functions import cells_of, content_of, is_of_functools
from tightfit.stages.trace.holders import NOWHERE, Holder, Place
from tightfit.stages.trace.reader import Reader
from tightfit.stages.trace.source import short_path
from tightfit.stages.trace.spaces import is_plain

Found = tuple[Place, Any]


def executed(reader: Reader) -> tuple[list[Holder], list[str]]:
    """Holders of the kind "code" for all functions that ran, and sentences on those that cannot be
    found again. What a function makes for itself is part of its code."""
    found: dict[int, Holder] = {}
    problems = []
    for code, names in reader.codes.items():
        if code in reader.members:
            continue
        where = _reached(reader, code) or _by_name(reader, code, names)
        if where is None:
            if not _in_import(code, reader):
                problems.append(_not_found(code))
            continue
        place, function = where
        shown = f"the code of {function.__qualname__}"
        holder = Holder(place, shown, "code", function, {"": function})
        holder.read("")
        found.setdefault(id(function), holder)
    return list(found.values()), problems


def decorated(reader: Reader, holders: list[Holder]) -> None:
    """Notes what the decorators of packages and of Python's library, in which functions that ran
    stand, were made with."""
    for place in [holder.place for holder in holders]:
        for end, step in enumerate(place):
            wrapper = reader.wrappers.get(place[:end]) if step[0] == "cell" else None
            if wrapper is None:
                continue
            key = ("cells", id(wrapper))
            for name, cell in cells_of(wrapper):
                value = content_of(cell)
                if _is_setting(value) or (type(value) is dict and is_of_functools(wrapper)):
                    holder = Holder(place[:end], wrapper.__name__, "cells", wrapper, {})
                    holder = reader.holders.setdefault(key, holder)
                    holder.known.setdefault(name, value)
                    holder.read(name)


def _is_setting(value: Any) -> bool:
    owner = getattr(value, "__self__", None)
    plain = is_plain(value) and not isinstance(value, list | dict | set)
    return plain or is_context(value) or is_context(owner)


def _reached(reader: Reader, code: types.CodeType) -> Found | None:
    place, function = reader.functions.get(code, ((NOWHERE,), None))
    return None if place[0] == NOWHERE else (place, function)


def _by_name(reader: Reader, code: types.CodeType, names: dict[str, Any]) -> Found | None:
    """The function that stands under the name of a code, in its module or in a class there, and is
    that code or makes it."""
    module = sys.modules.get(str(names.get("__name__")))
    if module is None or vars(module) is not names:
        return None
    name, *inner = code.co_qualname.partition(".<locals>")[0].split(".")
    place: Place = (("python", str(names["__name__"])), ("global", name))
    thing = names.get(name, ABSENT)
    for part in inner:
        bases = thing.__mro__ if isinstance(thing, type) else ()
        thing = next((vars(base)[part] for base in bases if part in vars(base)), ABSENT)
        place = (*place, ("class", part))
    reader.enter_function(thing, place)
    return _reached(reader, code)


def _in_import(code: types.CodeType, reader: Reader) -> bool:
    """True for the code of a module that the forward itself imported, and what it made there."""
    return any(
        code is one or code in nested(one) for one in reader.codes if one.co_name == "<module>"
    )


def _not_found(code: types.CodeType) -> str:
    return (
        f"the forward runs {code.co_qualname} at {short_path(code.co_filename)}:"
        f"{code.co_firstlineno}, which cannot be found again from the model, so that other code in "
        f"its place would not be noticed; define it in a module or keep it as an attribute"
    )
