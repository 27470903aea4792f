"""What a model's forward reads beside tensors, written down as JSON so that it can be compared.

A value that Python code may read is written as itself where it is None, a truth value, an integer,
a finite float or a text, and else as a list that begins with a word: a container with its items, a
function with its name and the digest of its code, a tensor with the digest of its bytes, any other
object with its type. The file travels with a generated package and needs only PyTorch.
"""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import math
import pathlib
import re
import sys
import sysconfig
import types
import uuid
from collections.abc import Mapping
from typing import Any

import torch

ABSENT = object()
"""Stands for what is not there."""

_GONE = ["absent"]
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_DATES = (datetime.date, datetime.time, datetime.timedelta, datetime.timezone)
_REPEATED = (range, slice, type(...), type(NotImplemented), pathlib.PurePath, uuid.UUID, *_DATES)
_WRITTEN = (
    *(int, float, complex, str, bytes, bytearray, array.array),
    *(decimal.Decimal, fractions.Fraction, re.Pattern),
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
VIEWS: tuple[Any, ...] = (type({}.values()), type({}.items()), type({}.keys()))
"""What shows a dictionary that stands elsewhere."""
_CONTAINERS = (
    *(list, tuple, set, frozenset, dict, collections.deque, types.MappingProxyType),
    *VIEWS,
)
_PYTHON = sysconfig.get_path("stdlib")
_DEEPEST = 12


def encode(value: Any, own: Mapping[int, str] | None = None, depth: int = 0) -> Any:
    """A value as JSON. `own` gives the path of each tensor of the model by its id and of each
    module by that of its fields, which a planned model and the one it was made of share."""
    own = own or {}
    if value is ABSENT:
        return _GONE
    if isinstance(value, torch.Tensor) and id(value) in own:
        return ["own", own[id(value)]]
    if isinstance(value, torch.nn.Module) and id(vars(value)) in own:
        return ["own", own[id(vars(value))]]
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind in (float, complex, bytes) or isinstance(value, _REPEATED):
        return ["plain", kind.__name__, repr(value)]
    if isinstance(value, enum.Enum):
        return ["enum", *_named(kind), value.name]
    if isinstance(value, _TORCH):
        return ["torch", str(value)]
    if isinstance(value, torch.Tensor):
        return ["tensor", list(value.shape), str(value.dtype), digest_of(value)]
    if isinstance(value, _CONTAINERS):
        return _container(value, own, depth)
    if isinstance(value, memoryview):
        return ["array", repr(value.shape), str(value.format), _sha(value.tobytes())]
    if (owner := bound_to(value)) is not ABSENT and depth <= _DEEPEST:
        return ["bound", value.__name__, encode(owner, own, depth + 1)]
    if isinstance(value, _WRITTEN):
        return ["plain", kind.__name__, _written(value)]
    if is_array(value):
        return ["array", repr(value.shape), str(value.dtype), _sha(value.tobytes())]
    return _code(value, own, depth)


def _container(value: Any, own: Mapping[int, str], depth: int) -> Any:
    if depth > _DEEPEST:
        return ["object", *_named(type(value))]
    names = _named(type(value))
    if isinstance(value, dict | types.MappingProxyType):
        return ["dict", *names, _pairs(value, own, depth)]
    items = [encode(item, own, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        items.sort(key=repr)
    return ["items", *names, items]


def _pairs(value: Mapping[Any, Any], own: Mapping[int, str], depth: int) -> list[list[Any]]:
    return [[encode(key, own, depth + 1), encode(value[key], own, depth + 1)] for key in value]


def _code(value: Any, own: Mapping[int, str], depth: int) -> Any:
    if isinstance(value, property):
        return ["property", *_code(value.fget, own, depth)[1:]]
    if isinstance(value, staticmethod | classmethod):
        return _code(value.__func__, own, depth)
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return ["partial", *(encode(part, own, depth + 1) for part in parts)]
    if isinstance(value, functools._lru_cache_wrapper):
        return ["cached", encode(value.__wrapped__, own, depth)]
    if isinstance(value, _FUNCTIONS):
        code = getattr(value, "__code__", None)
        digest = None if code is None or installed(code.co_filename) else code_digest(code)
        return ["function", *_named(value), digest]
    if isinstance(value, type):
        return ["class", *_named(value)]
    if isinstance(value, types.ModuleType):
        return ["python", value.__name__]
    if isinstance(value, _DESCRIPTORS) or type(value).__module__.startswith(
        ("torch._ops", "numpy")
    ):
        return ["plain", type(value).__name__, str(value)]
    if (slots := slots_of(value)) and depth <= _DEEPEST:
        return ["dict", *_named(type(value)), _pairs(slots, own, depth)]
    return ["object", *_named(type(value))]


def bound_to(value: Any) -> Any:
    """What a method that is not written in Python is of, ABSENT where it is of a module, a class or
    nothing."""
    if not isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
        return ABSENT
    owner = value.__self__
    return ABSENT if owner is None or isinstance(owner, types.ModuleType | type) else owner


def _written(value: Any) -> str:
    """A number, a text or bytes as text, whatever a class of the user's says of them."""
    for kind in (int, float, complex, str, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value)
    return repr((value.pattern, value.flags)) if isinstance(value, re.Pattern) else repr(value)


def slots_of(value: Any) -> dict[str, Any]:
    """What an object of a user's class has in its `__slots__`."""
    found = {}
    for base in type(value).__mro__ if not isinstance(value, type) else ():
        if not vars(base).get("__slots__") or installed_class(base):
            continue
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType) and name not in found:
                found[name] = _in_slot(slot, value)
    return found


def _in_slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return ABSENT


def installed_class(kind: type) -> bool:
    """True for a class of an installed package, of Python's library or of PyTorch."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "builtins" or (file is not None and installed(file))


def _named(thing: Any) -> list[str]:
    module = getattr(thing, "__module__", None) or ""
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    return [str(module), str(name or type(thing).__name__)]


def is_array(value: Any) -> bool:
    """True for an array of NumPy, of whatever class."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def class_of(thing: Any) -> type:
    """A class itself, or the class of a thing: of a planned module the original one."""
    kind = thing if isinstance(thing, type) else type(thing)
    return getattr(kind, "_tightfit_original", kind)


def type_of(module: torch.nn.Module) -> list[str]:
    """The module and the qualified name of a module's class, of the original of a planned one."""
    return _named(class_of(module))


_PARTIAL = (functools.partial, functools.partialmethod, functools.cached_property)


def underlying(value: Any) -> Any:
    """The function that a method, a property, a partial or the like runs."""
    for _ in range(8):
        if isinstance(value, staticmethod | classmethod | types.MethodType):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, _PARTIAL):
            value = value.func
        elif not isinstance(value, types.FunctionType) and "__wrapped__" in fields_of(value):
            value = fields_of(value)["__wrapped__"]
        else:
            break
    return value


def fields_of(value: Any) -> Mapping[str, Any]:
    """The fields of an object, whatever its class answers to those who ask."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def installed(file: str) -> bool:
    """True for a file of Python's own library, of an installed package, or of no file."""
    if "site-packages" in file or "dist-packages" in file:
        return True
    return file.startswith((_PYTHON, "<frozen", "<string>", "<__array"))


def code_digest(code: types.CodeType) -> str:
    """Python's version and a digest of what a code does, whatever its file and its lines."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{version}:{_sha(repr(_parts(code)).encode())[:24]}"


def _parts(code: types.CodeType) -> tuple[Any, ...]:
    return (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_argcount,
        tuple(_constant(constant) for constant in code.co_consts),
    )


def _constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return _parts(constant)
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return type(constant).__name__, repr(constant)


def digest_of(tensor: torch.Tensor) -> str | None:
    """A digest of a tensor's elements, None where it has no bytes."""
    if type(tensor).__name__ == "FakeTensor" or tensor.layout != torch.strided:
        return None
    if tensor.device.type == "meta":
        return None
    plain = tensor.detach()
    if plain.device.type != "cpu" or not plain.is_contiguous() or plain.is_conj():
        plain = plain.cpu().resolve_conj().contiguous()
    size = plain.numel() * plain.element_size()
    return _sha(ctypes.string_at(plain.data_ptr(), size) if size else b"")


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
