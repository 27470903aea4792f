"""What a model's forward reads beside tensors, written down as JSON so that it can be compared.

A value that Python code may read is written as itself where it is None, a truth value, an integer,
a finite float or a text. Any other is a list that begins with a word: a container with its items, a
function with its name and the digest of its code, a tensor with the digest of its bytes, any other
object with its type. The file travels with a generated package and needs only PyTorch.
"""

from __future__ import annotations

import array
import collections
import contextlib
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

MISSING = object()
"""Stands for what is not there."""

_MISSING_ENCODING = ["absent"]
_TORCH_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_DATE_TYPES = (datetime.date, datetime.time, datetime.timedelta, datetime.timezone)
_REPR_TYPES = (
    range,
    slice,
    type(...),
    type(NotImplemented),
    pathlib.PurePath,
    uuid.UUID,
    *_DATE_TYPES,
)
_TEXT_TYPES = (
    *(int, float, complex, str, bytes, bytearray, array.array),
    *(decimal.Decimal, fractions.Fraction, re.Pattern),
)
_FUNCTION_TYPES = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_DESCRIPTOR_TYPES = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
DICT_VIEWS: tuple[Any, ...] = (type({}.values()), type({}.items()), type({}.keys()))
"""What shows a dictionary that stands elsewhere."""
_CONTAINERS = (
    *(list, tuple, set, frozenset, dict, collections.deque, types.MappingProxyType),
    *DICT_VIEWS,
)
_STDLIB_FOLDER = sysconfig.get_path("stdlib")
_TORCH_FOLDER = f"{pathlib.Path(torch.__file__).parent}/"
_PARTIAL_TYPES: tuple[Any, ...] = (functools.partial, functools.partialmethod)
_CONTEXT_TYPES: tuple[Any, ...] = (
    torch.autocast,
    torch.utils._contextlib._DecoratorContextManager,
    contextlib._GeneratorContextManager,
)
"""Contexts that decorators hold: what they were made with is watched, not what they keep while
they are entered."""
_STDLIB_MODULES = ("string", "contextlib", "threading", "configparser")
"""Modules of Python's library whose objects are compared by the plain values that they hold."""
_CONTEXT_STATE = ("prev", "gen", "_inference_mode_context", "__doc__")
_OPERATOR_MODULES = ("operator", "_operator")
_CODE_FLAGS = 0x3FF
"""The flags of a code that say how it runs; the others say what its file imports of the future."""
_MAX_DEPTH = 12


def encode_value(value: Any, own: Mapping[int, str] | None = None, depth: int = 0) -> Any:
    """A value as JSON. `own` gives the path of each tensor of the model by its id and of each
    module by that of its fields, which a planned model and the one it was made of share, and of the
    lists and dictionaries whose contents are not compared, since the forward only adds to them."""
    own = own or {}
    if value is MISSING:
        return _MISSING_ENCODING
    if isinstance(value, torch.Tensor) and id(value) in own:
        return ["own", own[id(value)]]
    if isinstance(value, torch.nn.Module) and id(vars(value)) in own:
        return ["own", own[id(vars(value))]]
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind in (float, complex, bytes) or isinstance(value, _REPR_TYPES):
        return ["plain", kind.__name__, repr(value)]
    if isinstance(value, enum.Enum):
        held = {} if depth > _MAX_DEPTH else guarded_contents(value)
        return ["enum", *_qualified_name(kind), value.name, _encode_pairs(held, own, depth)]
    if isinstance(value, _TORCH_TYPES):
        return ["torch", str(value)]
    if isinstance(value, torch.Tensor):
        return ["tensor", list(value.shape), str(value.dtype), tensor_digest(value)]
    if isinstance(value, _CONTAINERS):
        if id(value) in own:
            return ["unguarded", *_qualified_name(kind)]
        return _encode_container(value, own, depth)
    if isinstance(value, memoryview):
        return ["array", repr(value.shape), str(value.format), _sha(value.tobytes())]
    if (owner := bound_object(value)) is not MISSING and depth <= _MAX_DEPTH:
        return ["bound", value.__name__, encode_value(owner, own, depth + 1)]
    if isinstance(value, _TEXT_TYPES):
        return ["plain", kind.__name__, _plain_text(value)]
    if is_array(value):
        return ["array", repr(value.shape), str(value.dtype), _sha(value.tobytes())]
    return _encode_code(value, own, depth)


def _encode_container(value: Any, own: Mapping[int, str], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return ["object", *_qualified_name(type(value))]
    names = _qualified_name(type(value))
    if isinstance(value, dict | types.MappingProxyType):
        made = []
        if isinstance(value, collections.defaultdict):
            made.append(encode_value(value.default_factory, own, depth + 1))
        return ["dict", *names, _encode_pairs(value, own, depth), *made]
    items = [encode_value(item, own, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        items.sort(key=repr)
    most = [value.maxlen] if isinstance(value, collections.deque) else []
    return ["items", *names, items, *most]


def _encode_pairs(value: Mapping[Any, Any], own: Mapping[int, str], depth: int) -> list[list[Any]]:
    return [
        [encode_value(key, own, depth + 1), encode_value(value[key], own, depth + 1)]
        for key in value
    ]


def _encode_code(value: Any, own: Mapping[int, str], depth: int) -> Any:
    if isinstance(value, property):
        return ["property", *_encode_code(value.fget, own, depth)[1:]]
    if isinstance(value, staticmethod | classmethod):
        return _encode_code(value.__func__, own, depth)
    if isinstance(value, _PARTIAL_TYPES):
        parts = (value.func, value.args, value.keywords)
        return ["partial", *(encode_value(part, own, depth + 1) for part in parts)]
    if isinstance(value, types.MethodType) and depth <= _MAX_DEPTH:
        function = _encode_code(value.__func__, own, depth)
        return [
            "bound",
            value.__func__.__name__,
            encode_value(value.__self__, own, depth + 1),
            function,
        ]
    if isinstance(value, functools._lru_cache_wrapper):
        return ["cached", encode_value(value.__wrapped__, own, depth)]
    if isinstance(value, _FUNCTION_TYPES):
        inner = instance_fields(value).get("__wrapped__")
        around = (
            [] if inner is None or depth > _MAX_DEPTH else [_encode_code(inner, own, depth + 1)]
        )
        return ["function", *_qualified_name(value), _function_digest(value), *around]
    if isinstance(value, type):
        return ["class", *_qualified_name(value)]
    if isinstance(value, types.ModuleType):
        return ["python", value.__name__]
    of_numpy = type(value).__module__.startswith("numpy")
    if isinstance(value, _DESCRIPTOR_TYPES) or is_operator(value) or of_numpy:
        return ["plain", type(value).__name__, str(value)]
    if (held := guarded_contents(value)) and depth <= _MAX_DEPTH:
        return ["dict", *_qualified_name(type(value)), _encode_pairs(held, own, depth)]
    return ["object", *_qualified_name(type(value))]


def _function_digest(function: Any) -> str | None:
    code = getattr(function, "__code__", None)
    if code is None or is_installed_code(code, function.__globals__):
        return None
    return code_digest(code)


def guarded_contents(value: Any) -> dict[str, Any]:
    """What an object of the few kinds that are compared by what they hold does hold, by name: the
    slots of a user's class, a member of an enumeration, the context of a decorator, a getter of
    `operator`."""
    if isinstance(value, enum.Enum):
        known = ("_name_", "__objclass__", "_sort_order_")
        return {name: item for name, item in instance_fields(value).items() if name not in known}
    if isinstance(value, _CONTEXT_TYPES):
        return {k: v for k, v in instance_fields(value).items() if not k.startswith(_CONTEXT_STATE)}
    if type(value).__module__ in _STDLIB_MODULES:
        return {k: v for k, v in instance_fields(value).items() if _is_plain(v)}
    if type(value).__module__ in _OPERATOR_MODULES and not isinstance(value, type):
        return {"given": value.__reduce__()[1:]}
    return slot_values(value)


def has_field_contents(value: Any) -> bool:
    """True for an object of which `guarded_contents` gives fields."""
    return isinstance(value, enum.Enum) or type(value).__module__ in _STDLIB_MODULES


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        return all(_is_plain(item, depth + 1) for item in (*value, *value.values()))
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return all(_is_plain(item, depth + 1) for item in value)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def is_decorator_context(value: Any) -> bool:
    """True for a context that a decorator of PyTorch or `contextlib` holds."""
    return isinstance(value, _CONTEXT_TYPES)


def bound_object(value: Any) -> Any:
    """What a method that is not written in Python is of, ABSENT where it is of a module, a class or
    nothing."""
    if not isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
        return MISSING
    owner = value.__self__
    return MISSING if owner is None or isinstance(owner, types.ModuleType | type) else owner


def _plain_text(value: Any) -> str:
    """A number, a text or bytes as text, whatever a class of the user's says of them."""
    for kind in (int, float, complex, str, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value)
    return repr((value.pattern, value.flags)) if isinstance(value, re.Pattern) else repr(value)


def slot_values(value: Any) -> dict[str, Any]:
    """What an object of a user's class has in its `__slots__`."""
    found = {}
    for base in type(value).__mro__ if not isinstance(value, type) else ():
        if not vars(base).get("__slots__") or is_installed_class(base):
            continue
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType) and name not in found:
                found[name] = _slot_value(slot, value)
    return found


def _slot_value(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


def is_installed_class(kind: type) -> bool:
    """True for a class of an installed package, of Python's library or of PyTorch."""
    if is_run_time_class(kind):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "builtins" or (file is not None and is_installed_file(file))


def is_run_time_class(kind: type) -> bool:
    """True for a class of `make_dataclass` and the like, which says that it is of `types`."""
    return kind.__module__ == "types" and kind.__name__ not in vars(types)


def _qualified_name(thing: Any) -> list[str]:
    module = getattr(thing, "__module__", None) or ""
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    return [str(module), str(name or type(thing).__name__)]


def is_array(value: Any) -> bool:
    """True for an array of NumPy, of whatever class."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_operator(value: Any) -> bool:
    """True for an operator of PyTorch's dispatcher, whoever registered it."""
    return type(value).__module__.startswith(("torch._ops", "torch._library"))


def original_class(thing: Any) -> type:
    """A class itself, or the class of a thing: of a planned module the original one."""
    kind = thing if isinstance(thing, type) else type(thing)
    return getattr(kind, "_tightfit_original", kind)


def original_class_name(module: torch.nn.Module) -> list[str]:
    """The module and the qualified name of a module's class, of the original of a planned one."""
    return _qualified_name(original_class(module))


_WRAPPER_TYPES = (functools.partial, functools.partialmethod, functools.cached_property)


def underlying_function(value: Any) -> Any:
    """The function that a method, a property, a partial or the like runs."""
    for _ in range(8):
        if isinstance(value, staticmethod | classmethod | types.MethodType):
            value = value.__func__
        elif isinstance(value, functools.singledispatchmethod):
            value = value.func
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, _WRAPPER_TYPES):
            value = value.func
        elif not isinstance(value, types.FunctionType) and "__wrapped__" in instance_fields(value):
            value = instance_fields(value)["__wrapped__"]
        else:
            break
    return value


def instance_fields(value: Any) -> Mapping[str, Any]:
    """The fields of an object, whatever its class answers to those who ask."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def is_installed_file(file: str) -> bool:
    """True for a file of Python's own library or of an installed package."""
    if "site-packages" in file or "dist-packages" in file:
        return True
    return file.startswith((_STDLIB_FOLDER, _TORCH_FOLDER, "<frozen", "<__array"))


def is_installed_code(code: types.CodeType, names: Mapping[str, Any]) -> bool:
    """True for code of Python's own library or of an installed package. Code that was made of a
    text is of the module whose `names` it has as globals."""
    if code.co_filename != "<string>":
        return is_installed_file(code.co_filename)
    module = str(names.get("__name__") or "")
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.startswith("namedtuple_") or (file is not None and is_installed_file(file))


@functools.lru_cache(maxsize=4096)
def code_digest(code: types.CodeType) -> str:
    """Python's version and a digest of what a code does, whatever its file and its lines."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{version}:{_sha(repr(_code_parts(code)).encode())[:24]}"


def _code_parts(code: types.CodeType) -> tuple[Any, ...]:
    return (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags & _CODE_FLAGS,
        code.co_exceptiontable,
        tuple(_code_constant(constant) for constant in code.co_consts),
    )


def _code_constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return _code_parts(constant)
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return type(constant).__name__, repr(constant)


def tensor_digest(tensor: torch.Tensor) -> str | None:
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
