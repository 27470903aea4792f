"""What a forward makes when it first runs and then finds made: caches, flags, hooks."""

from __future__ import annotations

import collections
import types
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.device.readings import ABSENT, encode, slots_of
from tightfit.stages.trace.functions import cells_of, content_of, defaults_of
from tightfit.stages.trace.holders import Holder, Kept
from tightfit.stages.trace.known import Known
from tightfit.stages.trace.reach import REGISTERED
from tightfit.stages.trace.reader import Reader
from tightfit.stages.trace.structure import only_computes, structure

_DEEPEST = 6


class Lasting:
    """Compares a first run of a forward, which leaves what it made, with a second one.

    `later` has the readings, by holder and name, as the second run found them, and `hooks` the
    hooks on submodules, as `stages.trace.structure` writes them; both are filled by `settle`.
    """

    def __init__(self, reader: Reader, own: dict[int, str], known: Known) -> None:
        self.reader = reader
        self.own = own
        self.known = known
        self.registered = {
            id(vars(module)[field]) for module in reader.model.modules() for field in REGISTERED
        }
        self.runs: list[dict[tuple[int, Any], Kept]] = []
        self.later: dict[tuple[int, str], Any] = {}
        self.hooks: list[list[Any]] = []
        self._made: list[Any] = []

    def ran(self, changed: dict[tuple[int, Any], Kept]) -> None:
        """Takes note of what a run changed, and of what the first one made."""
        self.runs.append(changed)
        if len(self.runs) == 1:
            self._made = self._contents()

    def settle(self, model: nn.Module, changed: set[tuple[int, Any]]) -> bool:
        """True where the first run made all that is `changed`, the second one changed nothing, and
        what was made hangs on no input and no weight."""
        if len(self.runs) != 2 or self.runs[1] or not changed <= set(self.runs[0]):
            return False
        if not all(self._lasts(kept, name) for (_, name), kept in self.runs[0].items()):
            return False
        if self._contents() != self._made:
            return False
        with _disable_current_modes():
            for holder in self.reader.holders.values():
                for name in holder.reads:
                    now = self._true(_now(holder, name))
                    self.later[id(holder), name] = encode(now, self.own)
        self.hooks = structure(model)["hooks"]
        return True

    def _contents(self) -> list[Any]:
        """What the first run made as it is now, with all that it holds."""
        made = [item for item in self.runs[0].items() if id(item[1].thing) not in self.reader.hooks]
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return [
                self._content(kept.thing if name is None else kept.thing.get(name, ABSENT))
                for (_, name), kept in made
            ]

    def _content(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, torch.Tensor):
            true = self.known.find(value)
            return id(value) if true is None else encode(true, self.own)
        if depth > _DEEPEST:
            return id(value)
        if isinstance(value, dict):
            value = [[key, item] for key, item in value.items()]
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            return [type(value).__name__, *(self._content(item, depth + 1) for item in value)]
        if slots := slots_of(value):
            return {name: self._content(item, depth + 1) for name, item in slots.items()}
        return encode(value, self.own)

    def _lasts(self, kept: Kept, name: Any) -> bool:
        if id(kept.thing) in self.registered:
            return False
        value: Any = kept.thing
        if id(value) in self.reader.hooks:
            return all(isinstance(hook, bool) or only_computes(hook) for hook in value.values())
        if name is not None:
            if name not in value:
                return True
            value = value[name]
        return self._is_lasting(value)

    def _is_lasting(self, value: Any, depth: int = 0) -> bool:
        if isinstance(value, torch.Tensor):
            return self.known.find(value) is not None and not value.requires_grad
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, list | tuple | set | frozenset):
            return depth < _DEEPEST and all(self._is_lasting(item, depth + 1) for item in value)
        if isinstance(value, (types.FunctionType, types.MethodType, nn.Module)):
            return False
        if slots := slots_of(value):
            found = slots.values()
            return not any(isinstance(item, torch.Tensor) for item in found) and all(
                self._is_lasting(item, depth + 1) for item in found
            )
        written = encode(value)
        return not isinstance(written, list) or written[0] != "object"

    def _true(self, value: Any, depth: int = 0) -> Any:
        """The value with the true tensors in place of those without memory."""
        if isinstance(value, torch.Tensor):
            true = self.known.find(value)
            return value if true is None else true
        if depth < _DEEPEST and type(value) in (list, tuple, set):
            return type(value)(self._true(item, depth + 1) for item in value)
        if depth < _DEEPEST and type(value) is dict:
            return {key: self._true(item, depth + 1) for key, item in value.items()}
        return value


def _now(holder: Holder, name: str) -> Any:
    thing = holder.thing
    if holder.kind == "cells":
        cell = dict(cells_of(thing)).get(name)
        return ABSENT if cell is None else content_of(cell)
    if holder.kind == "defaults":
        return defaults_of(thing).get(name, ABSENT)
    if holder.kind == "class":
        owner = next((base for base in thing.__mro__ if name in vars(base)), None)
        return ABSENT if owner is None else vars(owner)[name]
    return (thing if isinstance(thing, dict) else vars(thing)).get(name, ABSENT)
