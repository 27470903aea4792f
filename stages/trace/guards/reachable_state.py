"""What a model's forward can read: all that is reached from its modules, with its place."""

from __future__ import annotations

import abc
import collections
import functools
import sys
import types
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.runtime.guards.encode import (
    DICT_VIEWS,
    MISSING,
    bound_object,
    guarded_contents,
    is_decorator_context,
    is_installed_class,
    original_class,
    original_class_name,
    slot_values,
    underlying_function,
)
from tightfit.stages.runtime.guards.lru_caches import LRU_CACHE_WRAPPER, cached_results
from tightfit.stages.trace.code_inspection import (
    cell_content,
    closure_cells,
    has_captured_state,
    is_functools_function,
    is_tightfit_code,
    nested_codes,
)
from tightfit.stages.trace.guards.function_caches import FunctionCaches, describe_cache
from tightfit.stages.trace.guards.guard_source import (
    HOOK_STATE_FIELDS,
    INTERNAL_FIELDS,
    UNREACHABLE,
    GuardPath,
    GuardSource,
    StateSnapshot,
    container_items,
    copy_contents,
    is_guarded_object,
    is_mutable,
    is_user_function,
    needs_tensor_copy,
    pathless_objects,
)
from tightfit.stages.trace.guards.namespaces import Namespaces

REGISTERED_FIELDS = ("_modules", "_parameters", "_buffers")
_CALLABLE_TYPES = (types.FunctionType, types.MethodType, functools.partial, LRU_CACHE_WRAPPER)
_CONTAINERS = (dict, list, set, frozenset, tuple, collections.deque, types.MappingProxyType)
_MAX_FOLLOWED_STEPS = 8
"""Steps from what was read to what is followed before it is read."""
_MAX_PATH_LENGTH = 64
"""Steps from a module to what can be found again."""


class ReachableState(abc.ABC):
    """What the forward of a model can read.

    `holders` are by the id of their fields, `kept` by the id of what may change, among it what is
    in `hooks`, the dictionaries of the modules' hooks. `foreign` are the modules that the forward
    reaches and that are not registered, with how they are shown. `problems` are sentences on what
    cannot be watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.holders: dict[tuple[str, int], GuardSource] = {}
        self.kept: dict[int, StateSnapshot] = {}
        self.hooks: set[int] = set()
        self.problems: list[str] = []
        self.foreign: dict[int, tuple[nn.Module, str]] = {}
        self.tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """What it reaches that is no parameter and no buffer, with a copy."""
        self._own = {id(one) for one in (*model.parameters(), *model.buffers())}
        self._modules = {id(vars(module)): module for module in model.modules()}
        self.functions: dict[types.CodeType, tuple[GuardPath, Any]] = {}
        self._alike: dict[types.CodeType, dict[int, tuple[GuardPath, Any]]] = {}
        self._seen: set[int] = set()
        self._cut: set[int] = set()
        """Containers of which something was too far away to be followed."""
        self.caches = FunctionCaches()
        self._ran: set[types.CodeType] = set()
        self.members: set[types.CodeType] = set()
        """The codes of functions in sets, which are compared as items of these."""
        self.wrappers: dict[GuardPath, Any] = {}
        """The functions of Python's library and of packages that a user's function stands in."""
        self._alive: list[Any] = []
        self.spaces = Namespaces(self.holders, self.found)
        for path, module in model.named_modules():
            self._enter_module(module, (("module", path),), path)
        for path, module in model.named_modules():
            for field in FORWARD_HOOK_FIELDS if path else ():
                for number, hook in enumerate(vars(module)[field].values()):
                    if not is_computing_hook(hook):
                        at = (("module", path), ("hook", field, number))
                        self.discover(hook, at, hook_name(hook))

    @abc.abstractmethod
    def _patch(self, kind: type) -> bool:
        """Lets reads of objects of a class be recorded; False where that is not possible."""

    @abc.abstractmethod
    def _note_cells(self, code: types.CodeType, function: Any, place: GuardPath) -> None:
        """Notes what a function has around it: others of the same code may have something else."""

    @abc.abstractmethod
    def found(self, value: Any, place: GuardPath, shown: str) -> None:
        """Takes a value that was read."""

    def _enter_module(self, module: nn.Module, place: GuardPath, shown: str) -> None:
        fields = vars(module)
        holder = GuardSource(place, shown, "fields", module, dict(fields))
        self.holders["fields", id(fields)] = holder
        self._keep(shown, fields, place)
        for name in REGISTERED_FIELDS:
            self._keep(shown, fields[name], (UNREACHABLE,))
        for name in HOOK_STATE_FIELDS:
            self._keep(shown, fields[name], (UNREACHABLE,))
            self.hooks.add(id(fields[name]))
        self._enter_class(original_class(module), place)
        for name, value in list(fields.items()):
            if name not in INTERNAL_FIELDS:
                self.discover(value, (*place, ("field", name)), join_name(shown, name))

    def _keep(self, shown: str, thing: Any, place: GuardPath) -> None:
        if is_mutable(thing) and id(thing) not in self.kept:
            before = copy_contents(thing)
            kept = StateSnapshot(shown, thing, before, None, copy_contents(thing), place)
            self.kept[id(thing)] = kept

    def _enter_class(self, kind: type, place: GuardPath) -> None:
        """Remembers from where a class and its functions are reached."""
        if place[0] == UNREACHABLE:
            place = _class_path(kind) or place
        self.spaces.enter_class(kind, place)
        if not is_installed_class(type(kind)) and not issubclass(kind, type):
            self._enter_class(type(kind), (*place, ("type",)))
        for index, base in enumerate(kind.__mro__):
            if not base.__module__.startswith("torch.nn.") and base is not object:
                for name, value in list(vars(base).items()):
                    at = (
                        *place,
                        ("base", _first_inheriting_class(kind, index, name)),
                        ("class", name),
                    )
                    self.enter_function(value, at)
                    if is_guarded_object(value) and hasattr(type(value), "__get__"):
                        self.discover(value, at, name)

    def enter_function(self, value: Any, place: GuardPath, depth: int = 0) -> None:
        """Remembers from where a function is reached, with those around it and within it."""
        if (keeping := self.caches.take(value)) is not None:
            for _, kept in cached_results(keeping):
                self.discover(kept, (UNREACHABLE,), describe_cache(keeping))
        function = underlying_function(value)
        if not isinstance(function, types.FunctionType) or depth > _MAX_PATH_LENGTH:
            return
        known = self.functions.get(function.__code__)
        if known and known[1].__code__ is function.__code__ and not has_captured_state(function):
            return
        if isinstance(value, functools.singledispatchmethod):
            self.enter_function(value.dispatcher, (*place, ("given", "dispatcher")), depth + 1)
        if isinstance(value, property) and value.fset is not None:
            self.enter_function(value.fset, (*place, ("given", "fset")), depth + 1)
        place = (*place, ("function",))
        if is_user_function(function) and not is_tightfit_code(function.__code__.co_filename):
            if known is None or known[1].__code__ is not function.__code__:
                self.functions[function.__code__] = (place, function)
            alike = self._alike.setdefault(function.__code__, {})
            if id(function) in alike:
                return
            alike[id(function)] = (place, function)
            self.spaces.enter_function(function, place)
            if function.__code__ in self._ran:
                self._note_cells(function.__code__, function, place)
                self.spaces.note_defaults(function, place)
            for inner in nested_codes(function.__code__):
                self.functions.setdefault(inner, (place, function))
        elif function.__closure__:
            self.wrappers.setdefault(place, function)
        for name, cell in closure_cells(function):
            inside = cell_content(cell)
            if underlying_function(inside) is not function:
                self.enter_function(inside, (*place, ("cell", name)), depth + 1)
            if is_decorator_context(inside):
                for part, item in guarded_contents(inside).items():
                    at = (*place, ("cell", name), ("field", part))
                    self.enter_function(item, at, depth + 1)
            if type(inside) is dict and is_functools_function(function):
                self.discover(inside, (*place, ("cell", name)), name)

    def discover(self, value: Any, place: GuardPath, shown: str, far: int = 0) -> bool:
        """Follows a value that was found at a place: containers, objects, functions. The value is
        followed so far; what lies `far`ther is followed when that before it is read. False where
        that is so."""
        if far > _MAX_FOLLOWED_STEPS:
            return False
        if id(value) in self._seen and id(value) not in self._cut:
            return True
        self._cut.discard(id(value))
        if len(place) > _MAX_PATH_LENGTH:
            self.problems.append(
                f"{shown} lies too deep to be watched; keep it in an attribute of the model"
            )
        elif isinstance(value, nn.Module):
            if id(vars(value)) not in self._modules:
                self._discover_foreign(value, place, shown)
        elif isinstance(value, _CALLABLE_TYPES) or bound_object(value) is not MISSING:
            self._discover_function(value, place, shown, far)
        elif isinstance(value, types.ModuleType):
            self.spaces.enter_module(value, place)
        elif isinstance(value, type):
            if not is_installed_class(value):
                self._remember(value)
                self._enter_class(value, place)
        else:
            return self._discover_data(value, place, shown, far)
        return True

    def _discover_function(self, value: Any, place: GuardPath, shown: str, far: int) -> None:
        """A function with what it is bound to, the given arguments of a partial one, a cache."""
        self.enter_function(value, place)
        if isinstance(value, types.MethodType):
            self.discover(value.__self__, (*place, ("bound",)), f"{shown}.__self__", far)
        elif (owner := bound_object(value)) is not MISSING:
            self.discover(owner, (*place, ("bound",)), f"{shown}.__self__", far)
        elif isinstance(value, functools.partial):
            self.discover(value.func, (*place, ("given", "func")), shown, far)
            for name in ("args", "keywords"):
                inside = getattr(value, name)
                self.discover(inside, (*place, ("given", name)), f"{shown}.{name}", far)

    def _keep_tensor(self, value: torch.Tensor) -> None:
        if id(value) in self._own or id(value) in self.tensors:
            return
        # What is asked here is no part of what the forward did.
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if needs_tensor_copy(value):
                self.tensors[id(value)] = value, value.detach().clone()

    def _discover_data(self, value: Any, place: GuardPath, shown: str, far: int) -> bool:
        if isinstance(value, torch.Tensor):
            self._keep_tensor(value)
        whole = True
        items: list[tuple[GuardPath, str, Any]] = []
        if isinstance(value, DICT_VIEWS):
            return self.discover(value.mapping, (UNREACHABLE,), shown, far)
        if isinstance(value, _CONTAINERS):
            self._remember(value)
            if is_mutable(value):
                self._keep(shown, value, place)
            items = [((*place, step), end, item) for step, end, item in container_items(value)]
            items += [((UNREACHABLE,), "", item) for item in pathless_objects(value)]
            for item in value if isinstance(value, set | frozenset) else ():
                if isinstance(item, types.FunctionType):
                    self.members |= {item.__code__, *nested_codes(item.__code__)}
            if isinstance(value, collections.defaultdict):
                at = (*place, ("given", "default_factory"))
                items.append((at, ".default_factory", value.default_factory))
        elif is_mutable(value):
            self._remember(value)
            self._keep(shown, value, place)
        if slots := slot_values(value):
            self._remember(value)
            items += [((*place, ("field", name)), f".{name}", s) for name, s in slots.items()]
        for at, ending, item in items:
            whole = self.discover(item, at, shown + ending, far + 1) and whole
        if is_guarded_object(value):
            self._discover_object(value, place, shown, far)
        elif not whole:
            self._cut.add(id(value))
        return whole

    def _remember(self, value: Any) -> None:
        self._seen.add(id(value))
        self._alive.append(value)

    def _discover_object(self, value: Any, place: GuardPath, shown: str, far: int) -> None:
        self._remember(value)
        fields = vars(value)
        holder = GuardSource(place, shown, "fields", value, dict(fields))
        self.holders["fields", id(fields)] = holder
        self._keep(shown, fields, place)
        if not is_installed_class(type(value)):
            self._enter_class(type(value), place)
        for name, item in list(fields.items()):
            self.discover(item, (*place, ("field", name)), join_name(shown, name), far + 1)
        if not self._patch(type(value)) and place[0] != UNREACHABLE:
            for name in fields:
                holder.read(name)

    def _discover_foreign(self, value: nn.Module, place: GuardPath, shown: str) -> None:
        """A module that is kept in a list, another object or a global."""
        self._remember(value)
        for path, module in value.named_modules():
            if id(vars(module)) in self._modules:
                continue
            steps: GuardPath = ()
            for name in filter(None, path.split(".")):
                steps = (*steps, ("field", "_modules"), ("key", name))
            inner = join_name(shown, path) if path else shown
            self._modules[id(vars(module))] = module
            self.foreign[id(vars(module))] = (module, inner)
            self._alive.append(module)
            self._enter_module(module, (*place, *steps), inner)


def _first_inheriting_class(kind: type, index: int, name: str) -> int:
    """The first class in the order of a class from which on a name is that of its class `index`: a
    class between the two may be given the name later."""
    order = kind.__mro__
    start = index
    for earlier in range(index - 1, -1, -1):
        if name in vars(order[earlier]):
            break
        owners = (base for base in order[earlier].__mro__ if name in vars(base))
        if next(owners, None) is order[index]:
            start = earlier
    return start


def _class_path(kind: type) -> GuardPath | None:
    """Where a class stands in its module, None where it does not."""
    module = sys.modules.get(kind.__module__)
    if module is None or vars(module).get(kind.__name__) is not kind:
        return None
    return ("python", kind.__module__), ("global", kind.__name__)


def join_name(shown: str, name: str) -> str:
    """How a part of a thing is shown."""
    return f"{shown}.{name}" if shown else name


FORWARD_HOOK_FIELDS = ("_forward_hooks", "_forward_pre_hooks")
BACKWARD_HOOK_FIELDS = ("_backward_hooks", "_backward_pre_hooks")
HOOK_FIELDS = (*FORWARD_HOOK_FIELDS, *BACKWARD_HOOK_FIELDS)
_COMPUTING_HOOK_MODULES = (
    *("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm"),
    "torch.nn.utils.prune",
)
"""The modules of hooks that only compute an attribute, which the capture sees."""
_HOOK_NAME_ATTRIBUTES = ("name", "_tensor_name")
"""Where such hooks have the name of the attribute."""
_REQUIRE_GRADS_HOOK = "enable_input_require_grads.<locals>.make_inputs_require_grads"
"""A hook of transformers that lets embeddings require gradients, which the capture sees."""
_CAPTURE_OUTPUT_HOOK = "install_output_capuring_hook.<locals>.output_capturing_hook"
"""A hook of transformers that hands a submodule's output to the running forward."""
_OBSERVER_HOOKS = ("_observer_forward_hook", "_observer_forward_pre_hook")
"""Hooks by which quantization-aware training calls a fake quantizer, which the capture sees."""


def describe_model_structure(model: nn.Module) -> dict[str, Any]:
    """A model's modules with their types, its parameters and buffers, and hooks on submodules."""
    modules = list(model.named_modules(remove_duplicate=False))
    tensors: list[list[Any]] = []
    hooks = []
    for path, module in modules:
        for kind, field in (("parameter", "_parameters"), ("buffer", "_buffers")):
            for name, tensor in vars(module)[field].items():
                whole = f"{path}.{name}" if path else name
                shape = None if tensor is None else list(tensor.shape)
                dtype = None if tensor is None else str(tensor.dtype).removeprefix("torch.")
                tensors.append([whole, kind, shape, dtype])
        names = [hook_name(h) for f in HOOK_FIELDS for h in vars(module)[f].values()]
        if path and names:
            hooks.append([path, *names])
    return {
        "modules": [[path, *original_class_name(module)] for path, module in modules],
        "tensors": tensors,
        "hooks": hooks,
        "same_named_classes": _same_named_classes(
            [(path, original_class(module)) for path, module in modules]
        ),
    }


def _same_named_classes(classes: list[tuple[str, type]]) -> list[list[str]]:
    """The paths of modules whose class is another one of the same name as that of a module before
    them, put together by class."""
    groups: dict[type, list[str]] = {}
    names: dict[tuple[str, ...], type] = {}
    for path, kind in classes:
        if names.setdefault((kind.__module__, kind.__qualname__), kind) is not kind:
            groups.setdefault(kind, []).append(path)
    return list(groups.values())


def model_state_paths(model: nn.Module) -> dict[int, str]:
    """The paths of all parameters and buffers by id, of all modules by that of their fields."""
    paths: dict[int, str] = {}
    for path, module in model.named_modules():
        paths.setdefault(id(vars(module)), path)
        for field in ("_parameters", "_buffers"):
            for name, tensor in vars(module)[field].items():
                if tensor is not None:
                    paths.setdefault(id(tensor), f"{path}.{name}" if path else name)
    return paths


def is_computing_hook(hook: Any) -> bool:
    """True for a hook whose only effect is an attribute that the forward reads."""
    named = hook_name(hook).endswith((_REQUIRE_GRADS_HOOK, _CAPTURE_OUTPUT_HOOK, *_OBSERVER_HOOKS))
    return named or type(hook).__module__ in _COMPUTING_HOOK_MODULES


def hook_computed_attributes(module: nn.Module) -> set[str]:
    """The attributes that computing hooks of a module set."""
    hooks = vars(module).get("_forward_pre_hooks", {}).values()
    found = [
        getattr(hook, at, None)
        for hook in hooks
        if is_computing_hook(hook)
        for at in _HOOK_NAME_ATTRIBUTES
    ]
    return {name for name in found if isinstance(name, str)}


def hook_name(hook: Any) -> str:
    """How a hook is called in a sentence."""
    return str(getattr(hook, "__qualname__", None) or type(hook).__qualname__)
