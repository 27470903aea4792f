"""Records which plain attributes, globals and closures a model's forward reads."""

from __future__ import annotations

import collections
import functools
import sys
import types
from typing import Any

import torch
from torch import nn

from stages.device.readings import ABSENT, installed, installed_class, slots_of, underlying
from stages.trace.asking import asked_by_torch, walked_by_capture
from stages.trace.codes import globals_read, globals_written, names_of, nested
from stages.trace.functions import (
    cells_of,
    content_of,
    has_own,
    of_plan,
    own_code,
)
from stages.trace.holders import (
    HOOKS,
    INTERNAL,
    NOWHERE,
    Holder,
    Kept,
    Place,
    contents,
    is_dunder,
    is_generator,
    is_kept,
    is_object,
    is_users,
    items_of,
    unplaced_in,
)
from stages.trace.sentences import on_set
from stages.trace.spaces import Spaces, data_named, is_data

_HEAP_TYPE = 1 << 9
_CACHED = functools._lru_cache_wrapper
_CALLED = (types.FunctionType, types.MethodType, functools.partial, _CACHED)
_FARTHEST = 8
"""Steps from what was read to what is followed before it is read."""
_LONGEST = 64
"""Steps from a module to what can be found again."""
_REGISTERED = ("_modules", "_parameters", "_buffers")


class Reader:
    """What the forward of a model can read and did read.

    `holders` are by the id of their fields, `kept` by the id of what may change, among it what is
    in `hooks`, the dictionaries of the modules' hooks. `codes` are the codes outside installed
    packages that ran. `problems` are sentences on what cannot be watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.on = False
        self.busy = False
        self.holders: dict[tuple[str, int], Holder] = {}
        self.kept: dict[int, Kept] = {}
        self.codes: list[types.CodeType] = []
        self.hooks: set[int] = set()
        self.problems: list[str] = []
        self.named: dict[tuple[str, str], None] = {}
        """Modules whose registered modules, parameters or buffers were walked through."""
        self.foreign: dict[int, tuple[nn.Module, str]] = {}
        """Modules that the forward reaches and that are not registered, with how they are shown."""
        self.paths: dict[int, str] = {id(module): path for path, module in model.named_modules()}
        self._modules = {id(vars(module)): module for module in model.modules()}
        self._functions: dict[types.CodeType, tuple[Place, Any]] = {}
        self._alike: dict[types.CodeType, dict[int, tuple[Place, Any]]] = {}
        self._seen: set[int] = set()
        self._cut: set[int] = set()
        """Containers of which something was too far away to be followed."""
        self._caches: dict[int, tuple[Any, int]] = {}
        self._ran: set[types.CodeType] = set()
        self._patched: dict[type, Any] = {}
        self._alive: list[Any] = []
        self.spaces = Spaces(self.holders, self.discover)
        for path, module in model.named_modules():
            self._enter_module(module, (("module", path),), path)

    def _enter_module(self, module: nn.Module, place: Place, shown: str) -> None:
        fields = vars(module)
        holder = Holder(place, shown, "fields", module, dict(fields))
        self.holders["fields", id(fields)] = holder
        self._keep(shown, fields, None)
        for name in _REGISTERED:
            self._keep(shown, fields[name], None)
        for name in HOOKS:
            self._keep(shown, fields[name], None)
            self.hooks.add(id(fields[name]))
        self._enter_class(type(module), place)
        for name, value in list(fields.items()):
            if name not in INTERNAL:
                self.discover(value, (*place, ("field", name)), _join(shown, name))

    def _keep(self, shown: str, thing: Any, names: frozenset[str] | None) -> None:
        if is_kept(thing) and id(thing) not in self.kept:
            before = contents(thing)
            self.kept[id(thing)] = Kept(shown, thing, before, names, contents(thing))

    def _enter_class(self, kind: type, place: Place) -> None:
        """Remembers from where a class and its functions are reached."""
        if place[0] == NOWHERE:
            place = _place_of_class(kind) or place
        self.spaces.enter_class(kind, place)
        for index, base in enumerate(kind.__mro__):
            if not base.__module__.startswith("torch.nn.") and base is not object:
                for name, value in list(vars(base).items()):
                    self._enter_function(value, (*place, ("base", index), ("class", name)))

    def _enter_function(self, value: Any, place: Place, depth: int = 0) -> None:
        self._take_caches(value)
        function = underlying(value)
        if not isinstance(function, types.FunctionType) or depth > _LONGEST:
            return
        if function.__code__ in self._functions and not has_own(function):
            return
        place = (*place, ("function",))
        if is_users(function) and not own_code(function.__code__.co_filename):
            known = self._functions.get(function.__code__)
            if known is None or known[1].__code__ is not function.__code__:
                self._functions[function.__code__] = (place, function)
            alike = self._alike.setdefault(function.__code__, {})
            if id(function) in alike:
                return
            alike[id(function)] = (place, function)
            self.spaces.enter_function(function, place)
            if function.__code__ in self._ran:
                self._note_cells(function.__code__, function, place)
                self.spaces.note_defaults(function, place)
            for inner in nested(function.__code__):
                self._functions.setdefault(inner, (place, function))
        for name, cell in cells_of(function):
            inside = content_of(cell)
            if underlying(inside) is not function:
                self._enter_function(inside, (*place, ("cell", name)), depth + 1)

    def discover(self, value: Any, place: Place, shown: str, far: int = 0) -> bool:
        """Follows a value that was found at a place: containers, objects, functions. It is followed
        so far; what lies `far`ther is when that before it is read. False where that is so."""
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
        elif isinstance(value, _CALLED):
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
        self._enter_function(value, place)
        if isinstance(value, types.MethodType):
            self.discover(value.__self__, (*place, ("bound",)), f"{shown}.__self__", far)
        elif isinstance(value, functools.partial):
            self.discover(value.func, (*place, ("given", "func")), shown, far)
            for name in ("args", "keywords"):
                inside = getattr(value, name)
                self.discover(inside, (*place, ("given", name)), f"{shown}.{name}", far)

    def _discover_data(self, value: Any, place: Place, shown: str, far: int) -> bool:
        whole = True
        items: list[tuple[Place, str, Any]] = []
        if isinstance(value, dict | list | set | frozenset | tuple | collections.deque):
            self._remember(value)
            if is_kept(value):
                self._keep(shown, value, None)
            items = [((*place, step), end, item) for step, end, item in items_of(value)]
            items += [((NOWHERE,), "", item) for item in unplaced_in(value)]
        elif is_generator(value):
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

    def _take_caches(self, value: Any) -> None:
        """Notes a function that keeps what it returned (functools.lru_cache)."""
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, _CACHED):
            self._caches.setdefault(id(value), (value, value.cache_info().misses))

    def forget_caches(self) -> None:
        """Empties the caches that a run has filled: with tensors that have no memory."""
        for number, (function, misses) in self._caches.items():
            if function.cache_info().misses != misses:
                function.cache_clear()
                self._caches[number] = (function, function.cache_info().misses)

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
            self.discover(item, (*place, ("field", name)), _join(shown, name), far + 1)
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
            inner = _join(shown, path) if path else shown
            self._modules[id(vars(module))] = module
            self.foreign[id(vars(module))] = (module, inner)
            self._alive.append(module)
            self._enter_module(module, (*place, *steps), inner)

    def _patch(self, kind: type) -> bool:
        """Lets reads of objects of a class be recorded; False where that is not possible."""
        if kind in self._patched:
            return True
        if not kind.__flags__ & _HEAP_TYPE:
            return False
        own = vars(kind).get("__getattribute__", ABSENT)
        try:
            kind.__getattribute__ = self._recording(kind.__getattribute__)  # type: ignore
        except (AttributeError, TypeError):
            return False
        self._patched[kind] = own
        return True

    def _recording(self, original: Any) -> Any:
        noted = self.note

        def __getattribute__(thing: Any, name: str) -> Any:  # noqa: N807
            if self.on and not self.busy:
                self.busy = True
                try:
                    noted(thing, name)
                finally:
                    self.busy = False
            return original(thing, name)

        return __getattribute__

    def __enter__(self) -> Reader:
        self._patch(nn.Module)
        return self

    def __exit__(self, *_: object) -> None:
        self.problems += [
            on_set(shown, name, True, self.codes) for shown, name in self.spaces.finish()
        ]
        for kind, own in self._patched.items():
            if own is ABSENT:
                del kind.__getattribute__
            else:
                kind.__getattribute__ = own  # type: ignore[method-assign]
        self._patched.clear()

    def note(self, thing: Any, name: str) -> None:
        """Records that an attribute of a thing was asked for."""
        fields = object.__getattribute__(thing, "__dict__")
        holder = self.holders.get(("fields", id(fields)))
        if holder is None:
            return
        if name == "__dict__":
            if not asked_by_torch():
                self._note_all(holder)
            return
        if isinstance(holder.thing, nn.Module):
            self._note_of_module(holder, name)
        elif not is_dunder(name):
            self._note_field(holder, name)

    def copied(self, thing: Any) -> None:
        """Records that all of a thing was asked for from C."""
        fields = getattr(thing, "__dict__", None)
        holder = self.holders.get(("fields", id(fields)))
        if holder is not None and not isinstance(thing, nn.Module):
            self._note_all(holder)

    def _note_all(self, holder: Holder) -> None:
        for name in list(holder.known):
            if name not in INTERNAL:
                self._note_field(holder, name)
        if not isinstance(holder.thing, nn.Module):
            names = sorted(map(str, holder.known))
            key = ("names", id(vars(holder.thing)))
            known = Holder(holder.place, holder.shown, "names", holder.thing, {"": names})
            self.holders.setdefault(key, known).read("")

    def _note_of_module(self, holder: Holder, name: str) -> None:
        foreign = id(vars(holder.thing)) in self.foreign
        if foreign and name in INTERNAL and name not in (*_REGISTERED, "__dict__", "__class__"):
            self._note_field(holder, name)
        elif name in _REGISTERED:
            path = self.paths.get(id(holder.thing))
            if path is not None and (path, name) not in self.named and not walked_by_capture():
                self.named[path, name] = None
        elif name not in INTERNAL and name not in holder.reads and not is_dunder(name):
            registered = any(name in vars(holder.thing)[names] for names in _REGISTERED)
            if not registered or name in holder.known:
                self._note_field(holder, name)
            elif foreign:
                for names in _REGISTERED[1:]:
                    if name in vars(holder.thing)[names]:
                        holder.read(names)

    def _note_field(self, holder: Holder, name: str) -> None:
        if name in holder.reads:
            return
        value = holder.read(name)
        if value is ABSENT:
            self._note_class(holder, name)
        else:
            self.discover(value, (*holder.place, ("field", name)), _join(holder.shown, name))

    def _note_class(self, holder: Holder, name: str) -> None:
        kind = type(holder.thing)
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner in (nn.Module, object):
            return
        key = ("class", id(kind))
        if key not in self.holders:
            known = {k: v for base in reversed(kind.__mro__) for k, v in vars(base).items()}
            known.pop("__getattribute__", None)
            self.holders[key] = Holder(holder.place, holder.shown, "class", kind, known)
            self._alive.append(kind)
        held = self.holders[key]
        value = held.read(name)
        if value is not ABSENT:
            self.discover(value, (*holder.place, ("class", name)), _join(holder.shown, name))

    def ran(self, frame: types.FrameType) -> None:
        """Records what the code of a frame that begins to run names outside itself."""
        code = frame.f_code
        if code in self._ran:
            return
        self._ran.add(code)
        if installed(code.co_filename) or own_code(code.co_filename):
            return
        if of_plan(frame.f_globals):
            return
        self.codes.append(code)
        self.spaces.ran(frame)
        place, function = self._functions.get(code, (None, None))
        self._note_globals(code, frame.f_globals, place)
        self._note_closure(code, frame, place, function)

    def _note_globals(
        self, code: types.CodeType, names: dict[str, Any], place: Place | None
    ) -> None:
        wanted = [name for name, _ in globals_read(code) if name in names]
        if "globals" in code.co_names:
            wanted += data_named(names_of(code), names)
        written = globals_written(code)
        if not wanted and not written:
            return
        holder = self._globals_holder(names, place)
        if holder is None:
            return
        for name in [*wanted, *sorted(written)]:
            if name not in holder.known:
                holder.known[name] = names.get(name, ABSENT)
        if written:
            self._keep_names(holder, names, written)
        for name in wanted:
            value = holder.read(name)
            self.discover(value, (*holder.place, ("global", name)), f"the global {name}")

    def _globals_holder(self, names: dict[str, Any], place: Place | None) -> Holder | None:
        key = ("fields", id(names))
        if key not in self.holders:
            module = names.get("__name__", "")
            here = module in sys.modules and vars(sys.modules[module]) is names
            reached = place is not None and place[0] != NOWHERE
            if not here and not reached:
                return None
            found: Place = (("python", module),)
            if reached and (not here or module == "__main__"):
                found = (*(place or ()), ("globals",))
            self.holders[key] = Holder(found, "", "fields", names, {})
            self._alive.append(names)
        return self.holders[key]

    def _keep_names(self, holder: Holder, names: dict[str, Any], written: set[str]) -> None:
        kept = self.kept.setdefault(id(names), Kept("", names, {}, frozenset()))
        kept.names = (kept.names or frozenset()) | written
        for name in written:
            if name in names:
                kept.before.setdefault(name, names[name])
        kept.at_start = dict(kept.before)

    def _note_closure(
        self, code: types.CodeType, frame: types.FrameType, place: Place | None, function: Any
    ) -> None:
        for at, alike in self._alike.get(code, {}).values():
            self._note_cells(code, alike, at)
            self.spaces.note_defaults(alike, at)
        for name in code.co_freevars:
            if function is None and is_data(value := frame.f_locals.get(name)):
                self.problems.append(
                    f"{code.co_name} reads {name!r}, {_kind(value)} from around it, which cannot "
                    f"be watched; pass it as an argument or keep it as an attribute of the model"
                )

    def _note_cells(self, code: types.CodeType, function: Any, place: Place) -> None:
        """Notes what a function has around it: others of the same code may have something else."""
        around = dict(cells_of(function))
        for name in code.co_freevars:
            if name in around:
                self._note_cell(function, place, name, content_of(around[name]))

    def _note_cell(self, function: Any, place: Place, name: str, value: Any) -> None:
        key = ("cells", id(function))
        if key not in self.holders:
            self.holders[key] = Holder(place, function.__name__, "cells", function, {})
            self._alive.append(function)
        holder = self.holders[key]
        holder.known.setdefault(name, value)
        holder.read(name)
        self.discover(value, (*place, ("cell", name)), f"the closure's {name}")


def _place_of_class(kind: type) -> Place | None:
    """Where a class stands in its module, None where it does not."""
    module = sys.modules.get(kind.__module__)
    if module is None or vars(module).get(kind.__name__) is not kind:
        return None
    return ("python", kind.__module__), ("global", kind.__name__)


def _join(shown: str, name: str) -> str:
    return f"{shown}.{name}" if shown else name


def _kind(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
