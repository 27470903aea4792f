"""The things whose fields a model's forward reads: modules, objects, containers, globals.

A holder is such a thing with its place, from which another process finds it again, what its fields
were before the forward ran, and the names that the forward read.
"""

from __future__ import annotations

import array
import collections
import hashlib
import random
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import nn

from tightfit.stages.device.readings import (
    ABSENT,
    VIEWS,
    installed_code,
    is_array,
    is_operator,
    made_at_run_time,
    slots_of,
)

Place = tuple[tuple[Any, ...], ...]
"""Steps from a module of the model, or a module of Python, to a thing; see
`stages.generate.runtime.places`."""

_CALLING = ("_call_impl", "_compiled_call_impl")
INTERNAL = frozenset(vars(nn.Module())) | {"__dict__", "__class__", *_CALLING}
"""Fields that every module has; guards compare what matters of them."""

HOOKS = tuple(name for name in vars(nn.Module()) if name.startswith(("_forward_", "_backward_")))
"""Fields of a module that hold its hooks and what is known of each."""

_NAMESPACES = ("SimpleNamespace", "Namespace")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Tensor, type)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_UNPLACED = (set, frozenset, dict, types.MappingProxyType, *VIEWS)
_BYTES = (bytearray, array.array)
_LARGEST = 1 << 24
"""Bytes of an array beyond which no copy of it is kept."""
_USERS = (collections.UserDict, collections.UserList, collections.ChainMap)
NOWHERE = ("nowhere",)
"""The first step to what nobody can find again: a member of a set, a key, an item of an array."""


@dataclass
class Holder:
    """A thing with named parts. `kind` is "fields" (`__dict__` or another dictionary), "names" (of
    its fields), "class" (what its class says), "cells" (what a function has around it) or
    "defaults" (those of its arguments)."""

    place: Place
    shown: str
    kind: str
    thing: Any
    known: dict[str, Any]
    """The parts before the forward ran, or when they were first seen."""
    reads: dict[str, Any] = field(default_factory=dict)
    """The parts that were read and what they were."""

    def read(self, name: str) -> Any:
        """Notes that a part was read and gives what it was before the forward ran."""
        return self.reads.setdefault(name, self.known.get(name, ABSENT))


@dataclass
class Kept:
    """What a dictionary, list, set or generator held, to compare and to put back."""

    shown: str
    thing: Any
    before: Any
    """What it held when it was first seen: what is put back."""
    names: frozenset[str] | None = None
    """The keys to compare, None for all."""
    at_start: Any = None
    """What it held when the forward began, with the tensors that the capture put in."""


def is_dunder(name: str) -> bool:
    """True for a name of Python's own protocols."""
    return name.startswith("__") and name.endswith("__")


def is_kept(thing: Any) -> bool:
    """True for a thing that the forward may change in place."""
    if isinstance(thing, (dict, list, set, collections.deque, *_BYTES)) or is_generator(thing):
        return True
    return (is_array(thing) and thing.flags.writeable) or bool(slots_of(thing))


def is_copied(tensor: torch.Tensor) -> bool:
    """True for a tensor of which a copy is kept while a forward runs that may write into it."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    real = plain and tensor.device.type == "cpu" and not tensor.is_inference()
    return real and tensor.numel() * tensor.element_size() <= _LARGEST


def contents(thing: Any) -> Any:
    """A copy of what a mutable thing holds, one level deep."""
    if isinstance(thing, dict):
        return dict(thing)
    if isinstance(thing, list):
        return list(thing)
    if isinstance(thing, set):
        return set(thing)
    if isinstance(thing, collections.deque):
        return thing.copy()
    if isinstance(thing, _BYTES):
        return _Elements(bytes(thing), thing[:])
    if is_array(thing):
        data = thing.tobytes()
        if len(data) <= _LARGEST:
            return _Elements(data, thing.copy())
        return _Elements(hashlib.sha256(data).digest(), None)
    if is_generator(thing):
        return state_of(thing)
    return slots_of(thing)


def put_back(thing: Any, before: Any) -> None:
    """Gives a mutable thing what it held."""
    if isinstance(thing, dict):
        same = list(thing) == list(before)
        if not same or any(thing[key] is not before[key] for key in before):
            thing.clear()
            thing.update(before)
    elif isinstance(thing, list):
        thing[:] = before
    elif isinstance(thing, set):
        thing.clear()
        thing.update(before)
    elif isinstance(thing, collections.deque):
        thing.clear()
        thing.extend(before)
    elif isinstance(thing, _BYTES) or is_array(thing):
        if before.copy is not None and contents(thing) != before:
            thing[... if is_array(thing) else slice(None)] = before.copy
    elif is_generator(thing):
        set_state(thing, before)
    else:
        _put_back_slots(thing, before)


def _put_back_slots(thing: Any, before: dict[str, Any]) -> None:
    for name, now in slots_of(thing).items():
        if now is before[name]:
            continue
        if before[name] is ABSENT:
            object.__delattr__(thing, name)
        else:
            object.__setattr__(thing, name, before[name])


@dataclass(frozen=True)
class _Elements:
    """What an array held: its bytes, or the digest of many, and a copy to put back."""

    data: bytes
    copy: Any = field(compare=False)


def is_generator(thing: Any) -> bool:
    """True for an object that random numbers are drawn from."""
    if isinstance(thing, random.Random | torch.Generator):
        return not isinstance(thing, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        thing, (numpy.random.Generator, numpy.random.RandomState)
    )


def state_of(generator: Any) -> Any:
    """The state of a random generator, comparable with ==."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return torch_bytes(generator)
    bits: Any = getattr(generator, "bit_generator", None) or generator._bit_generator
    return _NumpyState(repr(bits.state), bits.state)


@dataclass(frozen=True)
class _NumpyState:
    """A state with arrays in it, which have no one truth value: its text is compared."""

    text: str
    state: Any = field(compare=False)


def set_state(generator: Any, state: Any) -> None:
    """Gives a random generator a state of `state_of`."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, torch.Generator):
        set_torch_bytes(generator, state)
    else:
        bits = getattr(generator, "bit_generator", None) or generator._bit_generator
        bits.state = state.state


def torch_bytes(generator: torch.Generator) -> bytes:
    """The state of one of PyTorch's generators, whatever modes are on."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return generator.get_state().numpy().tobytes()


def set_torch_bytes(generator: torch.Generator, state: bytes) -> None:
    """Gives one of PyTorch's generators a state of `torch_bytes`."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8).clone())


def is_object(value: Any) -> bool:
    """True for what has fields of its own that the forward may read: configurations, dataclasses,
    objects of a user's class."""
    if type(value) in _PLAIN or isinstance(value, (torch.Tensor, type, *_CODE, nn.Module, Enum)):
        return False
    if is_generator(value) or is_operator(value):
        return False
    if not type(value).__dictoffset__ or not isinstance(vars(value), dict):
        return False
    if type(value).__name__ in _NAMESPACES or isinstance(value, _USERS):
        return True
    return not _of_python(type(value))


def _of_python(kind: type) -> bool:
    """True for a class of Python's own library."""
    top = kind.__module__.partition(".")[0]
    return top in sys.stdlib_module_names and top != "__main__" and not made_at_run_time(kind)


def is_users(function: Any) -> bool:
    """True for a Python function outside installed packages and Python's own library."""
    code = getattr(function, "__code__", None)
    return code is not None and not installed_code(code, function.__globals__)


def items_of(value: Any) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    """The items of a container: the step to each, how it is shown, the item."""
    if isinstance(value, dict | types.MappingProxyType):
        for key, item in value.items():
            yield ("key", key), f"[{key!r}]", item
    elif isinstance(value, list | tuple | collections.deque):
        for index, item in enumerate(value):
            yield ("item", index), f"[{index}]", item


def unplaced_in(value: Any) -> list[Any]:
    """What a container holds that is an object of its own and has no place in it that lasts."""
    found: Any = value if isinstance(value, _UNPLACED) else ()
    return [item for item in found if is_object(item)]
