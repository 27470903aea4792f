"""The kinds of classes whose objects are structure: how each is found, taken apart and rebuilt.

Nothing here imports what a name says. The file travels with a generated package and needs only
PyTorch.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import types
from argparse import Namespace
from collections import OrderedDict, UserDict
from collections.abc import Callable
from enum import Enum
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

MAX_STRUCTURE_DEPTH = 100
"""How deeply a structure is nested at most."""

_NAMESPACES: tuple[type, ...] = (types.SimpleNamespace, Namespace)
_CLASS_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_REGISTERED_BY_NAME = (
    "transformers.cache_utils:DynamicCache",
    "transformers.cache_utils:EncoderDecoderCache",
)


@dataclasses.dataclass(frozen=True)
class NodeParts:
    """What an object is taken apart into: its items, and the `keys` and the `context` that
    `trees.Tree` has of it."""

    items: list[Any]
    keys: tuple[Any, ...] = ()
    context: Any = None


@dataclasses.dataclass(frozen=True)
class NodeKind:
    """A kind of classes: whether it has a class, how an object is taken apart, None where it is a
    leaf, and how an object of a class is rebuilt."""

    has: Callable[[type], bool]
    open: Callable[[Any], NodeParts | None]
    rebuild: Callable[[Any, NodeParts], Any]


def _open_namedtuple(value: Any) -> NodeParts | None:
    if getattr(value, "__dict__", None):
        return None
    return NodeParts(list(value), type(value)._fields)


def _open_dataclass(value: Any) -> NodeParts | None:
    """All attributes of the instance: its fields, and what was set beside them."""
    fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    state = {name: getattr(value, name) for name in fields}
    state |= {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in state}
    if not all(map(is_attribute_name, state)):
        return None
    return NodeParts(list(state.values()), tuple(state))


def _open_output(value: Any) -> NodeParts | None:
    held, attributes = dict(OrderedDict.items(value)), vars(value)
    state = {key: item for key, item in attributes.items() if key not in held}
    same = all(attributes.get(key, item) is item for key, item in held.items())
    if not same or not all(map(is_attribute_name, (*held, *state))):
        return None
    return NodeParts([*held.values(), *state.values()], (*held, *state), len(held))


def _open_user_dict(value: Any) -> NodeParts | None:
    """The items, then the attributes beside them."""
    state = {name: item for name, item in vars(value).items() if name != "data"}
    held = vars(value).get("data")
    if type(held) is not dict or state.keys() & held.keys():
        return None
    if not all(map(is_attribute_name, (*held, *state))):
        return None
    return NodeParts([*held.values(), *state.values()], (*held, *state), len(held))


def _open_object(value: Any) -> NodeParts | None:
    state = vars(value)
    if not all(map(is_attribute_name, state)):
        return None
    return NodeParts(list(state.values()), tuple(state))


def _open_registered(value: Any) -> NodeParts | None:
    try:
        items, context = pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
    except Exception:  # whatever a class makes of a state that it cannot take apart
        return None
    return NodeParts(list(items), context=context) if is_plain_context(context) else None


def _rebuild_namedtuple(kind: Any, parts: NodeParts) -> Any:
    if kind._fields != parts.keys:
        raise ValueError("its fields are others")
    return tuple.__new__(kind, parts.items)


def _rebuild_dataclass(kind: Any, parts: NodeParts) -> Any:
    instance = object.__new__(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    for key, item in zip(parts.keys, parts.items, strict=True):
        if key in fields:
            object.__setattr__(instance, key, item)
        else:
            vars(instance)[key] = item
    return instance


def _rebuild_output(kind: Any, parts: NodeParts) -> Any:
    instance: Any = OrderedDict.__new__(kind)
    for key, item in zip(parts.keys[: parts.context], parts.items, strict=False):
        OrderedDict.__setitem__(instance, key, item)
    vars(instance).update(zip(parts.keys, parts.items, strict=True))
    return instance


def _rebuild_user_dict(kind: Any, parts: NodeParts) -> Any:
    instance: Any = object.__new__(kind)
    held = list(zip(parts.keys, parts.items, strict=True))
    vars(instance).update(data=dict(held[: parts.context]), **dict(held[parts.context :]))
    return instance


def _rebuild_object(kind: Any, parts: NodeParts) -> Any:
    instance = kind() if kind is types.SimpleNamespace else object.__new__(kind)
    vars(instance).update(zip(parts.keys, parts.items, strict=True))
    return instance


def _rebuild_registered(kind: Any, parts: NodeParts) -> Any:
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(parts.items, parts.context)


def _is_namedtuple(kind: type) -> bool:
    fields = getattr(kind, "_fields", None)
    return (
        issubclass(kind, tuple)
        and isinstance(fields, tuple)
        and all(map(is_attribute_name, fields))
    )


def _is_dataclass(kind: type) -> bool:
    own = dataclasses.is_dataclass(kind) and kind.__new__ is object.__new__
    return own and not issubclass(kind, torch.nn.Module)


def _is_output(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and issubclass(kind, OrderedDict)


def _is_user_dict(kind: type) -> bool:
    return issubclass(kind, UserDict) and kind.__new__ is object.__new__


def _is_object(kind: type) -> bool:
    """True for a class of a user or of a package whose objects are nothing but their attributes."""
    if kind in _NAMESPACES:
        return True
    top = kind.__module__.partition(".")[0]
    installed = top in ("torch", "numpy") or (top in sys.stdlib_module_names and top != "__main__")
    opaque = issubclass(kind, (torch.nn.Module, type, BaseException, Enum))
    return False if installed or opaque else _has_fields_alone(kind)


def _has_fields_alone(kind: type) -> bool:
    slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    moving = any(hasattr(kind, name) for name in ("__next__", "__enter__", "__del__"))
    own = kind.__new__ is object.__new__ and bool(kind.__dictoffset__)
    return own and not slots and not moving


def _is_registered(kind: type) -> bool:
    if kind not in pytree.SUPPORTED_NODES or kind.__module__ in ("collections", "builtins"):
        return False
    named = f"{kind.__module__}:{kind.__qualname__}" in _REGISTERED_BY_NAME
    return named or issubclass(kind, (tuple, list, dict)) or dataclasses.is_dataclass(kind)


NODE_KINDS = {
    "namedtuple": NodeKind(_is_namedtuple, _open_namedtuple, _rebuild_namedtuple),
    "dataclass": NodeKind(_is_dataclass, _open_dataclass, _rebuild_dataclass),
    "output": NodeKind(_is_output, _open_output, _rebuild_output),
    "registered": NodeKind(_is_registered, _open_registered, _rebuild_registered),
    "userdict": NodeKind(_is_user_dict, _open_user_dict, _rebuild_user_dict),
    "object": NodeKind(_is_object, _open_object, _rebuild_object),
}
"""By their words in a text; the first one that has a class is that of its objects."""


def resolve_class(name: str, kind: str) -> type:
    """The class of that name, "module:qualname"; raises ValueError where it is not there, or is no
    class of that kind."""
    module, _, qualname = name.partition(":")
    found = find_imported_class(name) or find_imported_class(name_in_main(name))
    if found is None:
        raise ValueError(f"there is no class {qualname} in {module}, or it is not imported yet")
    if not NODE_KINDS[kind].has(found):
        raise ValueError(f"{name} is not of the kind {kind!r}, which was written of it")
    return found


def find_imported_class(name: str) -> type | None:
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


def name_in_main(name: str) -> str:
    """A script's classes have this name while it runs, and another when it is imported."""
    return f"__main__:{name.partition(':')[2]}"


def is_class_name(text: str) -> bool:
    """True for a text that is a name "module:qualname"."""
    return _CLASS_NAME.fullmatch(text) is not None


def is_attribute_name(key: Any) -> bool:
    """True for what can be the name of an attribute that is structure."""
    return type(key) is str and key.isidentifier() and not key.startswith("__")


def is_plain_context(context: Any, depth: int = 0) -> bool:
    """True for a context that is plain: texts, whole numbers, truth values, None, lists of them."""
    if type(context) is list and depth < MAX_STRUCTURE_DEPTH:
        return all(is_plain_context(item, depth + 1) for item in context)
    return type(context) in (str, int, bool, type(None))


_EXPORT_MODULE = "transformers.integrations.executorch"


def register_key_value_caches() -> None:
    """Registers the caches with pytree where transformers has been imported."""
    module = sys.modules.get("transformers.cache_utils")
    if module is None:
        return
    dynamic = getattr(module, "DynamicCache", None)
    if dynamic is not None and dynamic not in pytree.SUPPORTED_NODES:
        # Nothing but PyTorch is needed where transformers is not there.
        importlib.import_module(_EXPORT_MODULE).register_dynamic_cache_export_support()
    pair = getattr(module, "EncoderDecoderCache", None)
    if pair is not None and pair not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(pair, _cache_parts, lambda parts, _: pair(*parts))


def _cache_parts(cache: Any) -> tuple[list[Any], None]:
    return [cache.self_attention_cache, cache.cross_attention_cache], None
