"""What a forward makes when it first runs and then finds made: caches, flags, hooks."""

from __future__ import annotations

import collections
import types
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.runtime.guards.encode import MISSING, encode_value, slot_values
from tightfit.stages.trace.code_inspection import argument_defaults, cell_content, closure_cells
from tightfit.stages.trace.constant_folding import ConstantFolder
from tightfit.stages.trace.guards.attribute_recorder import AttributeRecorder
from tightfit.stages.trace.guards.guard_source import GuardSource, StateSnapshot
from tightfit.stages.trace.guards.reachable_state import (
    REGISTERED_FIELDS,
    describe_model_structure,
    is_computing_hook,
)

_MAX_DEPTH = 6


class LazyInitDetector:
    """Compares a first run of a forward, which leaves what it made, with a second one.

    `later` has the readings, by holder and name, as the second run found them, and `hooks` the
    hooks on submodules, as `stages.trace.guards.reachable_state` writes them; both are filled by
    `settle`."""

    def __init__(
        self, reader: AttributeRecorder, own: dict[int, str], known: ConstantFolder
    ) -> None:
        self.reader = reader
        self.own = own
        self.known = known
        self.registered = {
            id(vars(module)[field])
            for module in reader.model.modules()
            for field in REGISTERED_FIELDS
        }
        self.runs: list[dict[tuple[int, Any], StateSnapshot]] = []
        self.later: dict[tuple[int, str], Any] = {}
        self.hooks: list[list[Any]] = []
        self._made: dict[tuple[int, Any], Any] = {}

    def ran(self, changed: dict[tuple[int, Any], StateSnapshot]) -> None:
        """Takes note of what a run changed, and of what the first one made."""
        self.runs.append(changed)
        if len(self.runs) == 1:
            self._made = self._contents(self.runs[0])

    def settle(self, model: nn.Module, changed: set[tuple[int, Any]]) -> bool:
        """True where the first run made all that is `changed` and not changed by the second one,
        too, and what was made hangs on no input and no weight."""
        if len(self.runs) != 2 or not changed <= set(self.runs[0]):
            return False
        once = {key: kept for key, kept in self.runs[0].items() if key not in self.runs[1]}
        if not all(self._lasts(kept, name) for (_, name), kept in once.items()):
            return False
        if any(self._made[key] != now for key, now in self._contents(once).items()):
            return False
        with _disable_current_modes():
            for holder in self.reader.holders.values():
                for name in holder.reads:
                    now = self._true(_current_value(holder, name))
                    self.later[id(holder), name] = encode_value(now, self.own)
        self.hooks = describe_model_structure(model)["hooks"]
        return True

    def _contents(self, made: dict[tuple[int, Any], StateSnapshot]) -> dict[tuple[int, Any], Any]:
        """What the first run made as it is now, with all that it holds."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return {
                (key, name): self._content(
                    kept.thing if name is None else kept.thing.get(name, MISSING)
                )
                for (key, name), kept in made.items()
                if id(kept.thing) not in self.reader.hooks
            }

    def _content(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, torch.Tensor):
            true = self.known.find(value)
            return id(value) if true is None else encode_value(true, self.own)
        if depth > _MAX_DEPTH:
            return id(value)
        if isinstance(value, dict):
            value = [[key, item] for key, item in value.items()]
        if isinstance(value, list | tuple | set | frozenset | collections.deque):
            return [type(value).__name__, *(self._content(item, depth + 1) for item in value)]
        if slots := slot_values(value):
            return {name: self._content(item, depth + 1) for name, item in slots.items()}
        return encode_value(value, self.own)

    def _lasts(self, kept: StateSnapshot, name: Any) -> bool:
        if id(kept.thing) in self.registered:
            return False
        value: Any = kept.thing
        if id(value) in self.reader.hooks:
            return all(isinstance(hook, bool) or is_computing_hook(hook) for hook in value.values())
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
            return depth < _MAX_DEPTH and all(self._is_lasting(item, depth + 1) for item in value)
        if isinstance(value, (types.FunctionType, types.MethodType, nn.Module)):
            return False
        if slots := slot_values(value):
            found = slots.values()
            return not any(isinstance(item, torch.Tensor) for item in found) and all(
                self._is_lasting(item, depth + 1) for item in found
            )
        written = encode_value(value)
        return not isinstance(written, list) or written[0] != "object"

    def _true(self, value: Any, depth: int = 0) -> Any:
        """The value with the true tensors in place of those without memory."""
        if isinstance(value, torch.Tensor):
            true = self.known.find(value)
            return value if true is None else true
        if depth < _MAX_DEPTH and type(value) in (list, tuple, set):
            return type(value)(self._true(item, depth + 1) for item in value)
        if depth < _MAX_DEPTH and type(value) is dict:
            return {key: self._true(item, depth + 1) for key, item in value.items()}
        return value


def _current_value(holder: GuardSource, name: str) -> Any:
    thing = holder.thing
    if holder.kind == "cells":
        cell = dict(closure_cells(thing)).get(name)
        return MISSING if cell is None else cell_content(cell)
    if holder.kind == "defaults":
        return argument_defaults(thing).get(name, MISSING)
    if holder.kind == "class":
        owner = next((base for base in thing.__mro__ if name in vars(base)), None)
        return MISSING if owner is None else vars(owner)[name]
    return (thing if isinstance(thing, dict) else vars(thing)).get(name, MISSING)
