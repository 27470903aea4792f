"""Where what is watched stands, so that a call compares it quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_
from typing import Any

import torch

from .compare import same_plain
from .encode import MISSING, slot_values

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class DictEntries:
    """Dictionaries, a name in each, and the object that stands there."""

    def __init__(self) -> None:
        self.owners: list[Any] = []
        self.names: list[str] = []
        self.expected: list[Any] = []

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Takes what stands under a name."""
        self.owners.append(owner)
        self.names.append(name)
        self.expected.append(value)

    def same(self, get: Callable[..., Any]) -> bool:
        """True where the same objects stand there, or plain values that are the same."""
        found = map(get, self.owners, self.names, repeat(MISSING))
        if all(map(is_, found, self.expected)):
            return True
        for position, value in enumerate(map(get, self.owners, self.names, repeat(MISSING))):
            expected = self.expected[position]
            if value is expected:
                continue
            if not isinstance(value, _PLAIN_TYPES) or not same_plain(value, expected):
                return False
            self.expected[position] = value
        return True


class GuardTable:
    """Where what is watched stands, flat, so that a call compares it in a few passes."""

    def __init__(self) -> None:
        self.root: Any = None
        self.modules: list[torch.nn.Module] = []
        self.types: list[type] = []
        self.fields = DictEntries()
        self.classes = DictEntries()
        self.cells: list[tuple[Any, Any]] = []
        self.functions: list[tuple[Any, Any, Any]] = []
        self.codes: list[tuple[Any, Any]] = []
        self.lru_cached: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.versions: list[int] = []
        self.arrays: list[tuple[Any, bytes]] = []
        self.buffers: list[tuple[Any, bytes]] = []
        self.factories: list[tuple[Any, Any]] = []
        self.slots: list[tuple[Any, list[Any]]] = []
        self.orders: list[tuple[type, tuple[type, ...]]] = []
        self.noted: set[tuple[int, str, str]] = set()
        self.objects: list[Any] = []
        self.kinds: list[type] = []
        self.containers: list[tuple[Any, list[Any], list[Any] | None]] = []
        self.keys: list[tuple[Any, list[str]]] = []
        self.without_hooks: list[Any] = []
        self.hooked: list[Any] = []
        self.hook_keys: list[list[int]] = []

    def set_modules(self, modules: Sequence[torch.nn.Module]) -> None:
        """Takes the modules that are laid out."""
        self.root = vars(modules[0])
        self.modules = list(modules[1:])
        self.types = list(map(type, self.modules))

    def covers(self, modules: Sequence[torch.nn.Module]) -> bool:
        """True where these modules are those that are laid out, of the same classes."""
        return (
            vars(modules[0]) is self.root
            and len(modules) == len(self.modules) + 1
            and all(map(is_, modules[1:], self.modules))
            and all(map(is_, map(type, self.modules), self.types))
        )

    def hooks_unchanged(self) -> bool:
        """True where no hook came or went."""
        if any(self.without_hooks):
            return False
        return not self.hooked or [list(hooks) for hooks in self.hooked] == self.hook_keys

    def contents_unchanged(self) -> bool:
        """True where containers hold the same objects and tensors have the same versions."""
        for container, items, keys in self.containers:
            inside = container.values() if keys is not None else container
            if len(container) != len(items) or not all(map(is_, inside, items)):
                return False
            if keys is not None and list(container) != keys:
                return False
        for fields, names in self.keys:
            if list(fields) != names:
                return False
        for thing, held in self.slots:
            if not all(map(is_, slot_values(thing).values(), held)):
                return False
        if [tensor._version for tensor in self.tensors] != self.versions:
            return False
        if not all(map(is_, map(type, self.objects), self.kinds)):
            return False
        if any(kind.__mro__ is not order for kind, order in self.orders):
            return False
        if any(thing.default_factory is not factory for thing, factory in self.factories):
            return False
        if any(bytes(buffer) != data for buffer, data in self.buffers):
            return False
        return all(array.tobytes() == data for array, data in self.arrays)
