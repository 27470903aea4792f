"""The things whose fields a model's forward reads: modules, objects, containers, globals.

A holder is such a thing with its place, from which another process finds it again, what its fields
were before the forward ran, and the names that the forward read.
"""

from __future__ import annotations

import array
import collections
import contextlib
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
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from tightfit.stages.runtime.guards.encode import (
    DICT_VIEWS,
    MISSING,
    is_array,
    is_installed_code,
    is_operator,
    is_run_time_class,
    slot_values,
)

GuardPath = tuple[tuple[Any, ...], ...]
"""Steps from a module of the model, or a module of Python, to a thing; see
`stages.runtime.guards.paths`."""

_CALL_IMPL_FIELDS = ("_call_impl", "_compiled_call_impl")
INTERNAL_FIELDS = frozenset(vars(nn.Module())) | {"__dict__", "__class__", *_CALL_IMPL_FIELDS}
"""Fields that every module has; guards compare what matters of them."""

HOOK_STATE_FIELDS = tuple(
    name for name in vars(nn.Module()) if name.startswith(("_forward_", "_backward_"))
)
"""Fields of a module that hold its hooks and what is known of each."""

_NAMESPACES = ("SimpleNamespace", "Namespace")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Tensor, type)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_PATHLESS_CONTAINERS = (set, frozenset, dict, types.MappingProxyType, *DICT_VIEWS)
_BYTE_ARRAYS = (bytearray, array.array)
_MAX_COPIED_BYTES = 1 << 24
"""Bytes of an array beyond which no copy of it is kept."""
_USER_CONTAINERS = (collections.UserDict, collections.UserList, collections.ChainMap)
UNREACHABLE = ("nowhere",)
"""The first step to what nobody can find again: a member of a set, a key, an item of an array."""


@dataclass
class GuardSource:
    """A thing with named parts. `kind` is "fields" (`__dict__` or another dictionary), "names" (of
    its fields), "class" (what its class says), "cells" (what a function has around it) or
    "defaults" (those of its arguments)."""

    place: GuardPath
    shown: str
    kind: str
    thing: Any
    known: dict[str, Any]
    """The parts before the forward ran, or when they were first seen."""
    reads: dict[str, Any] = field(default_factory=dict)
    """The parts that were read and what they were."""

    def read(self, name: str) -> Any:
        """Notes that a part was read and gives what it was before the forward ran."""
        return self.reads.setdefault(name, self.known.get(name, MISSING))


@dataclass
class StateSnapshot:
    """What a dictionary, list, set or generator held, to compare and to put back."""

    shown: str
    thing: Any
    before: Any
    """What it held when it was first seen: what is put back."""
    names: frozenset[str] | None = None
    """The keys to compare, None for all."""
    at_start: Any = None
    """What it held when the forward began, with the tensors that the capture put in."""
    place: GuardPath = ()
    """Where it can be found again."""


def is_dunder(name: str) -> bool:
    """True for a name of Python's own protocols."""
    return name.startswith("__") and name.endswith("__")


def is_mutable(thing: Any) -> bool:
    """True for a thing that the forward may change in place."""
    if isinstance(
        thing, (dict, list, set, collections.deque, *_BYTE_ARRAYS)
    ) or is_random_generator(thing):
        return True
    return (is_array(thing) and thing.flags.writeable) or bool(slot_values(thing))


def needs_tensor_copy(tensor: torch.Tensor) -> bool:
    """True for a tensor of which a copy is kept while a forward runs that may write into it."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    real = plain and tensor.device.type == "cpu" and not tensor.is_inference()
    return real and tensor.numel() * tensor.element_size() <= _MAX_COPIED_BYTES


def copy_contents(thing: Any) -> Any:
    """A copy of what a mutable thing holds, one level deep."""
    if isinstance(thing, dict):
        return dict(thing)
    if isinstance(thing, list):
        return list(thing)
    if isinstance(thing, set):
        return set(thing)
    if isinstance(thing, collections.deque):
        return thing.copy()
    if isinstance(thing, _BYTE_ARRAYS):
        return _ArrayContents(bytes(thing), thing[:])
    if is_array(thing):
        data = thing.tobytes()
        if len(data) <= _MAX_COPIED_BYTES:
            return _ArrayContents(data, thing.copy())
        return _ArrayContents(hashlib.sha256(data).digest(), None)
    if is_random_generator(thing):
        return generator_state(thing)
    return slot_values(thing)


def restore_contents(thing: Any, before: Any) -> None:
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
    elif isinstance(thing, _BYTE_ARRAYS) or is_array(thing):
        if before.copy is not None and copy_contents(thing) != before:
            thing[... if is_array(thing) else slice(None)] = before.copy
    elif is_random_generator(thing):
        set_generator_state(thing, before)
    else:
        _restore_slots(thing, before)


def _restore_slots(thing: Any, before: dict[str, Any]) -> None:
    for name, now in slot_values(thing).items():
        if now is before[name]:
            continue
        if before[name] is MISSING:
            object.__delattr__(thing, name)
        else:
            object.__setattr__(thing, name, before[name])


@dataclass(frozen=True)
class _ArrayContents:
    """What an array held: its bytes, or the digest of many, and a copy to put back."""

    data: bytes
    copy: Any = field(compare=False)


def is_random_generator(thing: Any) -> bool:
    """True for an object that random numbers are drawn from."""
    if isinstance(thing, random.Random | torch.Generator):
        return not isinstance(thing, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        thing, (numpy.random.Generator, numpy.random.RandomState)
    )


def generator_state(generator: Any) -> Any:
    """The state of a random generator, comparable with ==."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return torch_generator_bytes(generator)
    bits: Any = getattr(generator, "bit_generator", None) or generator._bit_generator
    return _NumpyGeneratorState(repr(bits.state), bits.state)


@dataclass(frozen=True)
class _NumpyGeneratorState:
    """A state with arrays in it, which have no one truth value: its text is compared."""

    text: str
    state: Any = field(compare=False)


def set_generator_state(generator: Any, state: Any) -> None:
    """Gives a random generator a state of `generator_state`."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, torch.Generator):
        set_torch_generator_bytes(generator, state)
    else:
        bits = getattr(generator, "bit_generator", None) or generator._bit_generator
        bits.state = state.state


def torch_generator_bytes(generator: torch.Generator) -> bytes:
    """The state of one of PyTorch's generators, whatever modes are on."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return generator.get_state().numpy().tobytes()


def set_torch_generator_bytes(generator: torch.Generator, state: bytes) -> None:
    """Gives one of PyTorch's generators a state of `torch_generator_bytes`."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8).clone())


def is_guarded_object(value: Any) -> bool:
    """True for what has fields of its own that the forward may read: configurations, dataclasses,
    objects of a user's class."""
    if type(value) in _PLAIN or isinstance(value, (torch.Tensor, type, *_CODE, nn.Module, Enum)):
        return False
    if is_random_generator(value) or is_operator(value):
        return False
    if not type(value).__dictoffset__ or not isinstance(vars(value), dict):
        return False
    if type(value).__name__ in _NAMESPACES or isinstance(value, _USER_CONTAINERS):
        return True
    return not _is_stdlib_class(type(value))


def _is_stdlib_class(kind: type) -> bool:
    """True for a class of Python's own library."""
    top = kind.__module__.partition(".")[0]
    return top in sys.stdlib_module_names and top != "__main__" and not is_run_time_class(kind)


def is_user_function(function: Any) -> bool:
    """True for a Python function outside installed packages and Python's own library."""
    code = getattr(function, "__code__", None)
    return code is not None and not is_installed_code(code, function.__globals__)


def container_items(value: Any) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    """The items of a container: the step to each, how it is shown, the item."""
    if isinstance(value, dict | types.MappingProxyType):
        for key, item in value.items():
            yield ("key", key), f"[{key!r}]", item
    elif isinstance(value, list | tuple | collections.deque):
        for index, item in enumerate(value):
            yield ("item", index), f"[{index}]", item


def pathless_objects(value: Any) -> list[Any]:
    """What a container holds that is an object of its own and has no place in it that lasts."""
    found: Any = value if isinstance(value, _PATHLESS_CONTAINERS) else ()
    return [item for item in found if is_guarded_object(item)]


_COMPARABLE_TYPES = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def compared_contents(kept: StateSnapshot) -> Any:
    """What a thing holds now, of the names that are compared."""
    now = copy_contents(kept.thing)
    if kept.names is None:
        return now
    return {name: now[name] for name in kept.names if name in now}


def restore_snapshot(kept: StateSnapshot) -> None:
    """Gives a thing what it was when it was first seen."""
    if kept.names is None:
        restore_contents(kept.thing, kept.before)
    for name in kept.names or ():
        _restore_item(kept.thing, kept.before, name)


def undo_change(kept: StateSnapshot, name: Any) -> None:
    """Gives one part of a thing what it was when the forward began."""
    if name is None:
        restore_contents(kept.thing, kept.at_start)
    else:
        _restore_item(kept.thing, kept.at_start, name)


def _restore_item(thing: Any, then: Any, name: Any) -> None:
    if name in then:
        thing[name] = then[name]
    else:
        thing.pop(name, None)


def is_unchanged(before: Any, after: Any) -> bool:
    """True for one object, for plain values that are the same, and for tuples of these."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, tuple) and len(before) == len(after):
        return all(map(is_unchanged, before, after))
    if isinstance(before, _COMPARABLE_TYPES):
        return before == after or (before != before and after != after)
    return False


def matches_tensor_entry(before: dict[Any, Any], name: Any, after: Any) -> bool:
    """True for what a dictionary has, by the class of a tensor that only the capture knows, where
    that is the object that it has for true tensors: eager finds it there."""
    return (
        is_capture_tensor_class(name)
        and not _is_comparable(after)
        and before.get(torch.Tensor) is after
    )


def is_capture_tensor_class(name: Any) -> bool:
    """True for a class of tensors that only the capture knows."""
    return isinstance(name, type) and issubclass(name, (FakeTensor, FunctionalTensor))


def _is_comparable(value: Any) -> bool:
    return value is None or isinstance(value, _COMPARABLE_TYPES)


def has_same_contents(before: Any, now: Any) -> bool:
    """True for two contents of one thing (`stages.trace.guards.guard_source.copy_contents`) that
    are the same."""
    if isinstance(now, dict):
        return all(is_unchanged(before[name], value) for name, value in now.items())
    if not isinstance(now, list | set | collections.deque):
        return bool(before == now)
    return len(before) == len(now) and all(
        map(is_unchanged, _sorted_by_id(before), _sorted_by_id(now))
    )


def _sorted_by_id(items: Any) -> Any:
    return sorted(items, key=id) if isinstance(items, set) else items


@contextlib.contextmanager
def preserve_scalar_tensors(model: torch.nn.Module) -> Iterator[None]:
    """Puts back the tensors of one number that a forward writes, such as the counter of a batch
    norm: on these operators compute even without memory, to know their value."""
    state = (*model.parameters(), *model.buffers())
    single = [t for t in state if t.numel() == 1 and not (t.is_meta or isinstance(t, FakeTensor))]
    before = [(tensor, tensor.detach().clone()) for tensor in single]
    try:
        yield
    finally:
        for tensor, kept in before:
            if not torch.equal(tensor, kept):
                tensor.detach().copy_(kept)
