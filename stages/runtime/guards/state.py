"""Compares a model, at load and at each call, with what the plan's trace read of it."""

from __future__ import annotations

import array
import collections
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ..side_effects import SideEffects, read_side_effects, unguarded_containers
from .buffer_values import BufferValueGuard, is_buffer_value
from .compare import (
    ModelDifference,
    changed_number,
    describe_difference,
    encodings_match,
    missing_source,
)
from .encode import (
    DICT_VIEWS,
    MISSING,
    bound_object,
    encode_value,
    guarded_contents,
    has_field_contents,
    instance_fields,
    is_array,
    slot_values,
    underlying_function,
)
from .fast_compare import GuardTable
from .global_state import GLOBAL_STATES
from .lookup import LOOKUPS, follow_path
from .lru_caches import LRU_CACHE_WRAPPER, cached_results, nested_tensors
from .module_structure import (
    compare_classes,
    compare_module_structure,
    compare_type,
    state_paths_by_id,
)
from .paths import cell_contents, find_source

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [
    value
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("_hooks")
]


class GuardedState:
    """What a plan's trace read, laid out for one model.

    Raises Difference where the model is another one, and ValueError where the description is not
    of the known form.
    """

    def __init__(self, description: Any, modules: Mapping[str, torch.nn.Module]) -> None:
        check_guard_description(description)
        self.active = description is not None
        self.paths = list(modules)
        self.labels = ["the model", *self.paths[1:]]
        self.holders: list[dict[str, Any]] = []
        self.known: dict[int, tuple[torch.Tensor, int, Any]] = {}
        self.lists = GuardTable()
        self.kept: dict[int, tuple[torch.Tensor, int]] = {}
        self.values = BufferValueGuard([], self.paths)
        self.side_effects = SideEffects(read_side_effects(description))
        if not self.active:
            return
        self.values = BufferValueGuard(description.get("buffer_values", []), self.paths)
        self.holders = description["sources"]
        self.names = description["names"]
        self.types = {path: [module, name] for path, module, name in description["modules"]}
        self.twins = description["same_named_classes"]
        self.hooked: dict[str, list[list[str]]] = {}
        for path, *hooks in description["hooks"]:
            self.hooked.setdefault(path, []).append(hooks)
        self.none = [path for path, _, shape, _ in description["tensors"] if shape is None]
        self.states = [
            (name, GLOBAL_STATES[name], value)
            for name, value in description["global_state"].items()
            if name in GLOBAL_STATES
        ]
        self.asked = [ask for _, ask, _ in self.states]
        self.wanted = [value for _, _, value in self.states]
        compare_module_structure(self.types, description["tensors"], modules)
        self._lay_out(list(modules.values()))

    def check(self, modules: Sequence[torch.nn.Module]) -> None:
        """Raises Difference where what the trace read is no longer so.

        `modules` are those at the paths of the model that was loaded, in the same order.
        """
        if not self.active:
            return
        if any(_GLOBAL_HOOKS):
            raise ModelDifference(
                "PyTorch has a hook for all modules, which the plan would not run"
            )
        for (name, _, value), found in zip(self.states, [f() for f in self.asked], strict=True):
            if found != value:
                one, other = ("nothing" if each == "" else each for each in (found, value))
                raise ModelDifference(f"{name} is {one}, the plan was made with {other}")
        if not self.lists.covers(modules) or not self._same():
            self._lay_out(modules)
        if self.lists.lru_cached:
            self._check_kept()
        self.values.check(modules)

    def _check_kept(self) -> None:
        """Raises Difference where what a function keeps was changed since it was first seen."""
        seen: dict[int, tuple[torch.Tensor, int]] = {}
        for function in self.lists.lru_cached:
            for tensor in nested_tensors([value for _, value in cached_results(function)]):
                _, version = self.kept.get(id(tensor), (tensor, tensor._version))
                if tensor._version != version:
                    name = getattr(function, "__qualname__", "a function")
                    clause = f"a tensor that {name} keeps was changed in place"
                    raise ModelDifference(clause, f"clear what it keeps ({name}.cache_clear())")
                seen[id(tensor)] = tensor, version
        self.kept = seen

    def _same(self) -> bool:
        """True where nothing moved; what moved to an equal plain value is the same from now on."""
        lists = self.lists
        if not lists.hooks_unchanged():
            return False
        if not lists.fields.same(_get_of_dict) or not lists.classes.same(_get_of_class):
            return False
        for cell, expected in lists.cells:
            if cell_contents(cell) is not expected:
                return False
        for function, given, named in lists.functions:
            if function.__defaults__ is not given or function.__kwdefaults__ is not named:
                return False
        for function, code in lists.codes:
            if function.__code__ is not code:
                return False
        return lists.contents_unchanged()

    def _lay_out(self, modules: Sequence[torch.nn.Module]) -> None:
        """Compares all that is watched and remembers where it stands."""
        lists = GuardTable()
        by_path = dict(zip(self.paths, modules, strict=True))
        for path, module in by_path.items():
            compare_type(path, module, self.types[path])
        compare_classes(self.types, self.twins, by_path)
        lists.set_modules(modules)
        self._take_hooks(by_path, lists)
        self._take_names(by_path, lists)
        own = state_paths_by_id(by_path)
        own |= unguarded_containers(self.side_effects.effects, by_path)
        for holder in self.holders:
            self._take_holder(holder, by_path, own, lists)
        self.lists = lists

    def _take_hooks(self, modules: dict[str, torch.nn.Module], lists: GuardTable) -> None:
        for path, module in modules.items():
            if not path:
                continue
            dicts = [vars(module)[name] for name in _HOOKS]
            found = [_hook_name(hook) for hooks in dicts for hook in hooks.values()]
            if found in self.hooked.get(path, [[]]):
                target = lists.hooked if found else lists.without_hooks
                for hooks in dicts:
                    target.append(hooks)
                lists.hook_keys += [list(hooks) for hooks in dicts] if found else []
            elif found:
                raise ModelDifference(
                    f"{path} has the hook {found[0]}, which the plan would not run",
                    "remove it or put it on the whole model",
                )
            else:
                gone = next(filter(None, self.hooked[path]))[0]
                raise ModelDifference(
                    f"{path} no longer has the hook {gone} the plan was made with"
                )

    def _take_names(self, modules: dict[str, torch.nn.Module], lists: GuardTable) -> None:
        for path in self.none:
            owner, _, name = path.rpartition(".")
            for field in ("_parameters", "_buffers"):
                fields = vars(modules[owner])[field]
                if fields.get(name) is not None:
                    raise ModelDifference(
                        f"{path} is there, the plan was made with None in its place"
                    )
                lists.fields.add(fields, name, fields.get(name, MISSING))
        for path, field, names in self.names:
            if path not in modules:
                raise ModelDifference(f"this model has no module {path}")
            fields = vars(modules[path])[field]
            if list(fields) != names:
                raise ModelDifference(
                    f"{path or 'the model'} now has the {field.strip('_')} {', '.join(fields)}, "
                    f"the plan was made with {', '.join(names) or 'none'}"
                )
            lists.keys.append((fields, names))

    def _take_holder(
        self,
        holder: dict[str, Any],
        modules: Mapping[str, torch.nn.Module],
        own: dict[int, str],
        lists: GuardTable,
    ) -> None:
        place = holder["path"]
        of_code = holder["kind"] == "code"
        thing = follow_path(place, modules, lists) if of_code else find_source(place, modules)
        if thing is MISSING:
            raise missing_source(holder)
        look_up = LOOKUPS[holder["kind"]]
        for name, expected in holder["values"].items():
            found = look_up(thing, name, lists)
            written = self._encode(found, own)
            if not encodings_match(expected, written):
                called = f"{holder['label'] or 'the model'}.{name}"
                raise ModelDifference(
                    describe_difference(holder, name, written, expected),
                    number=changed_number(called, written, expected),
                )
            self._take_contents(found, lists, own)

    def _take_contents(
        self, value: Any, lists: GuardTable, own: dict[int, str], depth: int = 0
    ) -> None:
        if type(value).__dictoffset__ and not isinstance(value, torch.nn.Module | type):
            lists.objects.append(value)
            lists.kinds.append(type(value))
        if isinstance(value, torch.Tensor):
            if id(value) not in own:
                lists.tensors.append(value)
                lists.versions.append(value._version)
                self.known[id(value)] = (value, value._version, encode_value(value))
        elif is_array(value) or (type(value).__module__ == "numpy" and hasattr(value, "tobytes")):
            lists.arrays.append((value, value.tobytes()))
        elif isinstance(value, bytearray | memoryview | array.array):
            lists.buffers.append((value, bytes(value)))
        elif isinstance(value, DICT_VIEWS) and depth < 12:
            self._take_contents(value.mapping, lists, own, depth + 1)
        elif isinstance(value, _CONTAINERS) and depth < 12 and id(value) not in own:
            shown: Any = value
            keys = list(shown) if isinstance(value, dict | MappingProxyType) else None
            inside = list(shown) if keys is None else list(shown.values())
            if isinstance(value, collections.defaultdict):
                lists.factories.append((value, value.default_factory))
                self._take_contents(value.default_factory, lists, own, depth + 1)
            if not isinstance(value, tuple):
                lists.containers.append((value, inside, keys))
            for item in inside:
                self._take_contents(item, lists, own, depth + 1)
        elif (owner := bound_object(value)) is not MISSING and depth < 12:
            self._take_contents(owner, lists, own, depth + 1)
        elif isinstance(value, functools.partial | functools.partialmethod):
            parts = (value.func, value.args, value.keywords)
            self._take_contents(parts, lists, own, depth + 1)
        elif has_field_contents(value) and depth < 12:
            for name, item in guarded_contents(value).items():
                lists.fields.add(instance_fields(value), name, item)
                self._take_contents(item, lists, own, depth + 1)
        elif isinstance(value, LRU_CACHE_WRAPPER):
            lists.lru_cached.append(value)
            self._take_contents(value.__wrapped__, lists, own, depth + 1)
        elif inspect.isfunction(function := underlying_function(value)):
            lists.codes.append((function, function.__code__))
        elif (slots := slot_values(value)) and depth < 12:
            lists.slots.append((value, list(slots.values())))
            self._take_contents(tuple(slots.values()), lists, own, depth + 1)

    def _encode(self, value: Any, own: dict[int, str]) -> Any:
        known = self.known.get(id(value))
        if known is not None and known[0] is value and known[1] == value._version:
            return known[2]
        return encode_value(value, own)


_CONTAINERS = (list, tuple, dict, set, collections.deque, MappingProxyType)
_get_of_dict: Callable[..., Any] = dict.get
_get_of_class: Callable[..., Any] = MappingProxyType.get


def _hook_name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", None) or type(hook).__qualname__)


def read_guard_description(path: Path) -> tuple[Any, list[str]]:
    """What a package's `guards.json` says: what the trace read, and which buffers are written.

    Raises RuntimeError where it cannot be read.
    """
    try:
        document = json.loads(path.read_bytes())
        return document["guards"], list(document["written"])
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RuntimeError(f"{path} cannot be read, generate the module anew") from error


def check_guard_description(description: Any) -> None:
    """Raises ValueError unless a description has the form that
    `stages.trace.guards.guard_recorder` writes."""
    if description is None:
        return
    fields = {
        "modules": (list, _is_module_entry),
        "tensors": (list, _is_tensor_entry),
        "sources": (list, _is_guard_source),
        "names": (list, _is_names_entry),
        "hooks": (list, _is_text_list),
        "same_named_classes": (list, _is_text_list),
        "global_state": (dict, None),
    }
    if not isinstance(description, dict) or not set(fields) <= set(description):
        raise ValueError("the description of what is watched lacks a part")
    for name, (kind, test) in fields.items():
        part = description[name]
        if not isinstance(part, kind) or (test and not all(map(test, part))):
            raise ValueError(f"the description of what is watched has {name} of an unknown form")
    if not all(map(is_buffer_value, description.get("buffer_values", []))):
        raise ValueError("the description of what is watched has buffers of an unknown form")
    read_side_effects(description)
    if not all(isinstance(value, str | bool) for value in description["global_state"].values()):
        raise ValueError("the description of what is watched has states of an unknown form")


def _is_text_list(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(part, str) for part in item)


def _is_module_entry(item: Any) -> bool:
    return _is_text_list(item) and len(item) == 3


def _is_tensor_entry(item: Any) -> bool:
    return (
        isinstance(item, list)
        and len(item) == 4
        and _is_text_list(item[:2])
        and (item[2] is None or isinstance(item[2], list))
        and (item[3] is None or isinstance(item[3], str))
    )


def _is_names_entry(item: Any) -> bool:
    return (
        isinstance(item, list)
        and len(item) == 3
        and isinstance(item[0], str)
        and item[1] in ("_modules", "_parameters", "_buffers")
        and _is_text_list(item[2])
    )


def _is_guard_source(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and set(item) == {"path", "label", "kind", "values"}
        and isinstance(item["label"], str)
        and item["kind"] in ("fields", "names", "class", "cells", "defaults", "code")
        and isinstance(item["values"], dict)
        and isinstance(item["path"], list)
        and bool(item["path"])
        and all(isinstance(step, list) and step and _is_path_step(step) for step in item["path"])
    )


def _is_path_step(step: list[Any]) -> bool:
    if step[0] in ("globals", "function", "bound", "type"):
        return len(step) == 1
    if step[0] == "hook":
        return len(step) == 3 and isinstance(step[1], str) and type(step[2]) is int
    if len(step) != 2:
        return False
    if step[0] in ("item", "base"):
        return type(step[1]) is int
    words = ("module", "python", "field", "class", "cell", "default", "global", "given")
    return step[0] == "key" or (step[0] in words and isinstance(step[1], str))
