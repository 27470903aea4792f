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

from tightfit.stages.device.kept import WRAPPER, kept_by
from tightfit.stages.device.readings import (
    ABSENT,
    VIEWS,
    bound_to,
    class_of,
    held_by,
    installed_class,
    is_context,
    slots_of,
    underlying,
)
from tightfit.stages.trace.cached import Caches, shown_of
from tightfit.stages.trace.codes import nested
from tightfit.stages.trace.functions import cells_of, content_of, has_own, is_of_functools, own_code
from tightfit.stages.trace.holders import (
    HOOKS,
    INTERNAL,
    NOWHERE,
    Holder,
    Kept,
    Place,
    contents,
    is_copied,
    is_kept,
    is_object,
    is_users,
    items_of,
    unplaced_in,
)
from tightfit.stages.trace.spaces import Spaces

REGISTERED = ("_modules", "_parameters", "_buffers")
_CALLED = (types.FunctionType, types.MethodType, functools.partial, WRAPPER)
_CONTAINERS = (dict, list, set, frozenset, tuple, collections.deque, types.MappingProxyType)
_FARTHEST = 8
"""Steps from what was read to what is followed before it is read."""
_LONGEST = 64
"""Steps from a module to what can be found again."""


class Reach(abc.ABC):
    """What the forward of a model can read.

    `holders` are by the id of their fields, `kept` by the id of what may change, among it what is
    in `hooks`, the dictionaries of the modules' hooks. `foreign` are the modules that the forward
    reaches and that are not registered, with how they are shown. `problems` are sentences on what
    cannot be watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.holders: dict[tuple[str, int], Holder] = {}
        self.kept: dict[int, Kept] = {}
        self.hooks: set[int] = set()
        self.problems: list[str] = []
        self.foreign: dict[int, tuple[nn.Module, str]] = {}
        self.tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """What it reaches that is no parameter and no buffer, with a copy."""
        self._own = {id(one) for one in (*model.parameters(), *model.buffers())}
        self._modules = {id(vars(module)): module for module in model.modules()}
        self.functions: dict[types.CodeType, tuple[Place, Any]] = {}
        self._alike: dict[types.CodeType, dict[int, tuple[Place, Any]]] = {}
        self._seen: set[int] = set()
        self._cut: set[int] = set()
        """Containers of which something was too far away to be followed."""
        self.caches = Caches()
        self._ran: set[types.CodeType] = set()
        self.members: set[types.CodeType] = set()
        """The codes of functions in sets, which are compared as items of these."""
        self.wrappers: dict[Place, Any] = {}
        """The functions of Python's library and of packages that a user's function stands in."""
        self._alive: list[Any] = []
        self.spaces = Spaces(self.holders, self.found)
        for path, module in model.named_modules():
            self._enter_module(module, (("module", path),), path)

    @abc.abstractmethod
    def _patch(self, kind: type) -> bool:
        """Lets reads of objects of a class be recorded; False where that is not possible."""

    @abc.abstractmethod
    def _note_cells(self, code: types.CodeType, function: Any, place: Place) -> None:
        """Notes what a function has around it: others of the same code may have something else."""

    @abc.abstractmethod
    def found(self, value: Any, place: Place, shown: str) -> None:
        """Takes a value that was read."""

    def _enter_module(self, module: nn.Module, place: Place, shown: str) -> None:
        fields = vars(module)
        holder = Holder(place, shown, "fields", module, dict(fields))
        self.holders["fields", id(fields)] = holder
        self._keep(shown, fields, None)
        for name in REGISTERED:
            self._keep(shown, fields[name], None)
        for name in HOOKS:
            self._keep(shown, fields[name], None)
            self.hooks.add(id(fields[name]))
        self._enter_class(class_of(module), place)
        for name, value in list(fields.items()):
            if name not in INTERNAL:
                self.discover(value, (*place, ("field", name)), join(shown, name))

    def _keep(self, shown: str, thing: Any, names: frozenset[str] | None) -> None:
        if is_kept(thing) and id(thing) not in self.kept:
            before = contents(thing)
            self.kept[id(thing)] = Kept(shown, thing, before, names, contents(thing))

    def _enter_class(self, kind: type, place: Place) -> None:
        """Remembers from where a class and its functions are reached."""
        if place[0] == NOWHERE:
            place = _place_of_class(kind) or place
        self.spaces.enter_class(kind, place)
        if not installed_class(type(kind)) and not issubclass(kind, type):
            self._enter_class(type(kind), (*place, ("type",)))
        for index, base in enumerate(kind.__mro__):
            if not base.__module__.startswith("torch.nn.") and base is not object:
                for name, value in list(vars(base).items()):
                    at = (*place, ("base", _start(kind, index, name)), ("class", name))
                    self.enter_function(value, at)
                    if is_object(value) and hasattr(type(value), "__get__"):
                        self.discover(value, at, name)

    def enter_function(self, value: Any, place: Place, depth: int = 0) -> None:
        """Remembers from where a function is reached, with those around it and within it."""
        if (keeping := self.caches.take(value)) is not None:
            for _, kept in kept_by(keeping):
                self.discover(kept, (NOWHERE,), shown_of(keeping))
        function = underlying(value)
        if not isinstance(function, types.FunctionType) or depth > _LONGEST:
            return
        known = self.functions.get(function.__code__)
        if known and known[1].__code__ is function.__code__ and not has_own(function):
            return
        if isinstance(value, functools.singledispatchmethod):
            self.enter_function(value.dispatcher, (*place, ("given", "dispatcher")), depth + 1)
        place = (*place, ("function",))
        if is_users(function) and not own_code(function.__code__.co_filename):
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
            for inner in nested(function.__code__):
                self.functions.setdefault(inner, (place, function))
        elif function.__closure__:
            self.wrappers.setdefault(place, function)
        for name, cell in cells_of(function):
            inside = content_of(cell)
            if underlying(inside) is not function:
                self.enter_function(inside, (*place, ("cell", name)), depth + 1)
            if is_context(inside):
                for part, item in held_by(inside).items():
                    at = (*place, ("cell", name), ("field", part))
                    self.enter_function(item, at, depth + 1)
            if type(inside) is dict and is_of_functools(function):
                self.discover(inside, (*place, ("cell", name)), name)

    def discover(self, value: Any, place: Place, shown: str, far: int = 0) -> bool:
        """Follows a value that was found at a place: containers, objects, functions. The value is
        followed so far; what lies `far`ther is followed when that before it is read. False where
        that is so."""
        if far > _FARTHEST:
            return False
        if id(value) in self._seen and id(value) not in self._cut:
            return True
        self._cut.discard(id(value))
        if len(place) > _LONGEST:
            self.problems.append(
                f"{shown} lies too deep to be watched; keep it in an attribute of the model"
            )
        elif isinstance(value, nn.Module):
            if id(vars(value)) not in self._modules:
                self._discover_foreign(value, place, shown)
        elif isinstance(value, _CALLED) or bound_to(value) is not ABSENT:
            self._discover_function(value, place, shown, far)
        elif isinstance(value, types.ModuleType):
            self.spaces.enter_module(value, place)
        elif isinstance(value, type):
            if not installed_class(value):
                self._remember(value)
                self._enter_class(value, place)
        else:
            return self._discover_data(value, place, shown, far)
        return True

    def _discover_function(self, value: Any, place: Place, shown: str, far: int) -> None:
        """A function with what it is bound to, the given arguments of a partial one, a cache."""
        self.enter_function(value, place)
        if isinstance(value, types.MethodType):
            self.discover(value.__self__, (*place, ("bound",)), f"{shown}.__self__", far)
        elif (owner := bound_to(value)) is not ABSENT:
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
            if is_copied(value):
                self.tensors[id(value)] = value, value.detach().clone()

    def _discover_data(self, value: Any, place: Place, shown: str, far: int) -> bool:
        if isinstance(value, torch.Tensor):
            self._keep_tensor(value)
        whole = True
        items: list[tuple[Place, str, Any]] = []
        if isinstance(value, VIEWS):
            return self.discover(value.mapping, (NOWHERE,), shown, far)
        if isinstance(value, _CONTAINERS):
            self._remember(value)
            if is_kept(value):
                self._keep(shown, value, None)
            items = [((*place, step), end, item) for step, end, item in items_of(value)]
            items += [((NOWHERE,), "", item) for item in unplaced_in(value)]
            for item in value if isinstance(value, set | frozenset) else ():
                if isinstance(item, types.FunctionType):
                    self.members |= {item.__code__, *nested(item.__code__)}
            if isinstance(value, collections.defaultdict):
                at = (*place, ("given", "default_factory"))
                items.append((at, ".default_factory", value.default_factory))
        elif is_kept(value):
            self._remember(value)
            self._keep(shown, value, None)
        if slots := slots_of(value):
            self._remember(value)
            items += [((*place, ("field", name)), f".{name}", s) for name, s in slots.items()]
        for at, ending, item in items:
            whole = self.discover(item, at, shown + ending, far + 1) and whole
        if is_object(value):
            self._discover_object(value, place, shown, far)
        elif not whole:
            self._cut.add(id(value))
        return whole

    def _remember(self, value: Any) -> None:
        self._seen.add(id(value))
        self._alive.append(value)

    def _discover_object(self, value: Any, place: Place, shown: str, far: int) -> None:
        self._remember(value)
        fields = vars(value)
        holder = Holder(place, shown, "fields", value, dict(fields))
        self.holders["fields", id(fields)] = holder
        self._keep(shown, fields, None)
        if not installed_class(type(value)):
            self._enter_class(type(value), place)
        for name, item in list(fields.items()):
            self.discover(item, (*place, ("field", name)), join(shown, name), far + 1)
        if not self._patch(type(value)) and place[0] != NOWHERE:
            for name in fields:
                holder.read(name)

    def _discover_foreign(self, value: nn.Module, place: Place, shown: str) -> None:
        """A module that is kept in a list, another object or a global."""
        self._remember(value)
        for path, module in value.named_modules():
            if id(vars(module)) in self._modules:
                continue
            steps: Place = ()
            for name in filter(None, path.split(".")):
                steps = (*steps, ("field", "_modules"), ("key", name))
            inner = join(shown, path) if path else shown
            self._modules[id(vars(module))] = module
            self.foreign[id(vars(module))] = (module, inner)
            self._alive.append(module)
            self._enter_module(module, (*place, *steps), inner)


def _start(kind: type, index: int, name: str) -> int:
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


def _place_of_class(kind: type) -> Place | None:
    """Where a class stands in its module, None where it does not."""
    module = sys.modules.get(kind.__module__)
    if module is None or vars(module).get(kind.__name__) is not kind:
        return None
    return ("python", kind.__module__), ("global", kind.__name__)


def join(shown: str, name: str) -> str:
    """How a part of a thing is shown."""
    return f"{shown}.{name}" if shown else name
