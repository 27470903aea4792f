"""The kinds of classes whose objects are structure: how each is found, taken apart and rebuilt.

Nothing here imports what a name says. The file travels with a generated package and needs only
PyTorch.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

DEPTH = 100
"""How deeply a structure is nested at most."""

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_REGISTERED_BY_NAME = (
    "transformers.cache_utils:DynamicCache",
    "transformers.cache_utils:EncoderDecoderCache",
)


@dataclasses.dataclass(frozen=True)
class Parts:
    """What an object is taken apart into: its items, and the `keys` and the `context` that
    `trees.Tree` has of it."""

    items: list[Any]
    keys: tuple[Any, ...] = ()
    context: Any = None


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of classes: whether it has a class, how an object is taken apart, None where it is a
    leaf, and how an object of a class is rebuilt."""

    has: Callable[[type], bool]
    open: Callable[[Any], Parts | None]
    rebuild: Callable[[Any, Parts], Any]


def _open_namedtuple(value: Any) -> Parts | None:
    if getattr(value, "__dict__", None):
        return None
    return Parts(list(value), type(value)._fields)


def _open_dataclass(value: Any) -> Parts | None:
    """All attributes of the instance: its fields, and what was set beside them."""
    fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    state = {name: getattr(value, name) for name in fields}
    state |= {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in state}
    if not all(map(is_word, state)):
        return None
    return Parts(list(state.values()), tuple(state))


def _open_output(value: Any) -> Parts | None:
    held, attributes = dict(OrderedDict.items(value)), vars(value)
    state = {key: item for key, item in attributes.items() if key not in held}
    same = all(attributes.get(key, item) is item for key, item in held.items())
    if not same or not all(map(is_word, (*held, *state))):
        return None
    return Parts([*held.values(), *state.values()], (*held, *state), len(held))


def _open_registered(value: Any) -> Parts | None:
    try:
        items, context = pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
    except Exception:  # whatever a class makes of a state that it cannot take apart
        return None
    return Parts(list(items), context=context) if is_plain(context) else None


def _rebuild_namedtuple(kind: Any, parts: Parts) -> Any:
    if kind._fields != parts.keys:
        raise ValueError("its fields are others")
    return tuple.__new__(kind, parts.items)


def _rebuild_dataclass(kind: Any, parts: Parts) -> Any:
    instance = object.__new__(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    for key, item in zip(parts.keys, parts.items, strict=True):
        if key in fields:
            object.__setattr__(instance, key, item)
        else:
            vars(instance)[key] = item
    return instance


def _rebuild_output(kind: Any, parts: Parts) -> Any:
    instance: Any = OrderedDict.__new__(kind)
    for key, item in zip(parts.keys[: parts.context], parts.items, strict=False):
        OrderedDict.__setitem__(instance, key, item)
    vars(instance).update(zip(parts.keys, parts.items, strict=True))
    return instance


def _rebuild_registered(kind: Any, parts: Parts) -> Any:
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(parts.items, parts.context)


def _is_namedtuple(kind: type) -> bool:
    fields = getattr(kind, "_fields", None)
    return issubclass(kind, tuple) and isinstance(fields, tuple) and all(map(is_word, fields))


def _is_dataclass(kind: type) -> bool:
    own = dataclasses.is_dataclass(kind) and kind.__new__ is object.__new__
    return own and not issubclass(kind, torch.nn.Module)


def _is_output(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and issubclass(kind, OrderedDict)


def _is_registered(kind: type) -> bool:
    if kind not in pytree.SUPPORTED_NODES or kind.__module__ in ("collections", "builtins"):
        return False
    named = f"{kind.__module__}:{kind.__qualname__}" in _REGISTERED_BY_NAME
    return named or issubclass(kind, (tuple, list, dict)) or dataclasses.is_dataclass(kind)


KINDS = {
    "namedtuple": Kind(_is_namedtuple, _open_namedtuple, _rebuild_namedtuple),
    "dataclass": Kind(_is_dataclass, _open_dataclass, _rebuild_dataclass),
    "output": Kind(_is_output, _open_output, _rebuild_output),
    "registered": Kind(_is_registered, _open_registered, _rebuild_registered),
}
"""By their words in a text; the first one that has a class is that of its objects."""


def class_named(name: str, kind: str) -> type:
    """The class of that name, "module:qualname"; raises ValueError where it is not there, or is no
    class of that kind."""
    module, _, qualname = name.partition(":")
    found = find(name) or find(in_main(name))
    if found is None:
        raise ValueError(f"there is no class {qualname} in {module}, or it is not imported yet")
    if not KINDS[kind].has(found):
        raise ValueError(f"{name} is not of the kind {kind!r}, which was written of it")
    return found


def find(name: str) -> type | None:
    """The class of a name, among what has been imported; nothing is asked that could import."""
    module, _, qualname = name.partition(":")
    place: Any = sys.modules.get(module)
    if not isinstance(place, ModuleType):
        return None
    for part in qualname.split("."):
        place = vars(place).get(part)
        if not isinstance(place, type):
            return None
    return place


def in_main(name: str) -> str:
    """A script's classes have this name while it runs, and another when it is imported."""
    return f"__main__:{name.partition(':')[2]}"


def is_name(text: str) -> bool:
    """True for a text that is a name "module:qualname"."""
    return _NAME.fullmatch(text) is not None


def is_word(key: Any) -> bool:
    """True for what can be the name of an attribute that is structure."""
    return type(key) is str and key.isidentifier() and not key.startswith("__")


def is_plain(context: Any, depth: int = 0) -> bool:
    """True for a context that is plain: texts, whole numbers, truth values, None, lists of them."""
    if type(context) is list and depth < DEPTH:
        return all(is_plain(item, depth + 1) for item in context)
    return type(context) in (str, int, bool, type(None))
