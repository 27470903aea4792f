"""Tells by content whether two functions do the same: by code, and by all that the code can reach.

What cannot be told by content has no fingerprint, so that nothing is ever taken for the same that
may not be.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from abc import ABCMeta
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import torch

MAX_OBJECTS = 100_000
"""Objects that a function may reach; one that reaches more has no fingerprint."""

_PLAIN_TYPES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    type(...),
    type(NotImplemented),
)
_TORCH_CONSTANT_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_INTROSPECTION_BUILTINS = frozenset(
    "eval exec globals locals vars compile open input __import__".split()
)
"""Built-in functions that reach what the code does not name."""
_MAX_INSTANCE_BYTES = object.__basicsize__ + 2 * tuple.__itemsize__
"""Bytes of an instance with a dictionary and a list of weak references."""

_IGNORED_CLASS_ATTRIBUTES = frozenset(
    "__module__ __doc__ __dict__ __weakref__ __firstlineno__ __static_attributes__ "
    "__annotations__ __annotate_func__ __annotations_cache__ __orig_bases__ __parameters__ "
    "__dataclass_fields__ __dataclass_params__ _abc_impl".split()
)


class UnknownContentError(Exception):
    """An object whose content cannot be told."""


def fingerprint_function(function: Callable[..., Any]) -> str | None:
    """The fingerprint of a function, 64 hex digits; None where its content cannot be told.

    The digest covers the bytecode with that of nested functions, defaults, closures, and what
    global names refer to: functions and classes, plain values, tensors by their bytes, attributes
    of objects. Names of PyTorch and of the standard library stand for themselves, as do built-in
    functions. Where the source stands, and what a variable is annotated with, does not matter.
    """
    reader = _FingerprintReader()
    try:
        reader.read(function)
    except (UnknownContentError, RecursionError):
        return None
    return reader.digest.hexdigest()


class _FingerprintReader:
    """Feeds what it reads to `digest`, each object once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []

    def say(self, *words: object) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            self.digest.update(len(data).to_bytes(8, "little") + data)

    def read(self, thing: Any) -> None:
        """Reads any object; raises UnknownContentError when its content cannot be told."""
        if type(thing) in _PLAIN_TYPES or type(thing) in _TORCH_CONSTANT_TYPES:
            self.say(type(thing).__name__, repr(thing))
        elif id(thing) in self.seen:
            self.say("again", self.seen[id(thing)])
        else:
            self.seen[id(thing)] = len(self.seen)
            self.alive.append(thing)
            if len(self.seen) > MAX_OBJECTS:
                raise UnknownContentError
            self.read_new(thing)

    def read_new(self, thing: Any) -> None:
        name = _public_name(thing)
        if name is not None:
            self.say("name", name)
        elif isinstance(thing, torch.Tensor):
            self.read_tensor(thing)
        elif isinstance(thing, type):
            self.read_class(thing)
        elif isinstance(thing, types.CodeType):
            self.read_code(thing)
        elif isinstance(thing, Enum):
            self.read_all("enum", [type(thing), thing.name])
        else:
            self.read_all(type(thing).__name__, self.parts(thing))

    def read_all(self, tag: str, things: Iterable[Any]) -> None:
        items = list(things)
        self.say(tag, len(items))
        for item in items:
            self.read(item)

    def parts(self, thing: Any) -> list[Any]:
        """What an object consists of, where that says all about it."""
        kind = type(thing)
        if kind in (tuple, list):
            return list(thing)
        if kind in (dict, OrderedDict):
            return [part for item in thing.items() for part in item]
        if kind in (set, frozenset) and all(type(item) in _PLAIN_TYPES for item in thing):
            return sorted(thing, key=repr)
        if kind is types.FunctionType:
            return self.function_parts(thing)
        if kind is types.MethodType:
            return [thing.__func__, thing.__self__]
        if kind is functools.partial:
            return [thing.func, thing.args, thing.keywords]
        if kind in (staticmethod, classmethod):
            return [thing.__func__]
        if kind is property:
            return [thing.fget, thing.fset, thing.fdel]
        if kind is types.CellType:
            return list(_cell_contents(thing))
        if type(getattr(thing, "__dict__", None)) is dict and _is_plain_class(kind):
            return [kind, thing.__dict__]
        raise UnknownContentError

    def function_parts(self, function: types.FunctionType) -> list[Any]:
        reached = list(_referenced_globals(function))
        attributes = {k: v for k, v in function.__dict__.items() if k != "__wrapped__"}
        return [
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            function.__closure__,
            attributes,
            *reached,
        ]

    def read_code(self, code: types.CodeType) -> None:
        self.say("code", code.co_code, code.co_exceptiontable, code.co_flags)
        self.say(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.read_all("names", names)
        self.read_all("constants", code.co_consts)

    def read_class(self, kind: type) -> None:
        own = {k: v for k, v in vars(kind).items() if k not in _IGNORED_CLASS_ATTRIBUTES}
        slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
        if any(isinstance(value, slots) for value in own.values()):
            raise UnknownContentError
        self.say("class", kind.__qualname__)
        self.read_all("bases", [type(kind), *kind.__bases__])
        self.read(own)

    def read_tensor(self, tensor: torch.Tensor) -> None:
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not plain or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise UnknownContentError
        self.say("tensor", tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        self.say(tensor.requires_grad)
        memory = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
        self.say(memory.view(torch.uint8).numpy().tobytes())
        if tensor.__dict__ or tensor._backward_hooks:
            raise UnknownContentError


def _cell_contents(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:
        return


def _referenced_globals(function: types.FunctionType) -> Iterator[Any]:
    """What a function and those inside it refer to by global names, each after its name."""
    loads, imports, attributes = _references(function.__code__)
    for name in sorted(loads):
        if name in function.__globals__:
            yield name
            yield from _module_contents(function.__globals__[name], attributes)
        elif name in _INTROSPECTION_BUILTINS:
            raise UnknownContentError
    for name in sorted(imports):
        module = sys.modules.get(name)
        if module is None:
            raise UnknownContentError
        yield name
        yield from _module_contents(module, attributes)


def _references(code: types.CodeType) -> tuple[set[str], set[str], set[str]]:
    """The global names a code loads, the modules it imports, and the attributes it may read."""
    loads: set[str] = set()
    imports: set[str] = set()
    attributes = set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loads.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            imports.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _references(constant)
            loads, imports = loads | inner[0], imports | inner[1]
            attributes |= inner[2]
    return loads, imports, attributes


def _module_contents(thing: Any, attributes: set[str]) -> Iterator[Any]:
    """An object that a name refers to; of a module that is not public, what may be read of it."""
    pending, seen = [thing], set()
    while pending:
        found = pending.pop()
        if not isinstance(found, types.ModuleType) or _is_public(found.__name__):
            yield found
        elif found.__name__ not in seen:
            seen.add(found.__name__)
            yield found.__name__
            for name in sorted(attributes & set(vars(found))):
                yield name
                pending.append(vars(found)[name])


def _is_public(module: str | None) -> bool:
    """True for modules whose names stand for their content: PyTorch's, the standard library's."""
    root = (module or "").split(".")[0]
    return root == "torch" or (root in sys.stdlib_module_names and root != "__main__")


def _public_name(thing: Any) -> str | None:
    """The name of a module, class or function of PyTorch, of the standard library or built in."""
    if isinstance(thing, types.ModuleType):
        if not _is_public(thing.__name__):
            raise UnknownContentError
        return thing.__name__
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if isinstance(thing, types.BuiltinFunctionType | types.MethodDescriptorType):
        owner = getattr(thing, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType):
            return f"{module}.{name}"
        if isinstance(owner, type) and _public_name(owner):
            return f"{_public_name(owner)}.{name}"
        raise UnknownContentError
    if isinstance(thing, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(thing)
    known = isinstance(thing, types.FunctionType | type)
    if not (known and isinstance(module, str) and isinstance(name, str) and _is_public(module)):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is thing else None


def _is_plain_class(kind: type) -> bool:
    """True where instances are no more than their attributes and their class: nothing is kept
    below Python."""
    return all(
        type(base) in (type, ABCMeta)
        and "__slots__" not in vars(base)
        and not isinstance(vars(base).get("__new__"), types.BuiltinFunctionType)
        and base.__basicsize__ <= _MAX_INSTANCE_BYTES
        for base in kind.__mro__
        if base is not object
    )
