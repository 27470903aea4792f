"""Records which plain attributes, globals and closures a model's forward reads."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.stages.runtime.guards.encode import (
    MISSING,
    instance_fields,
    is_decorator_context,
    is_installed_code,
    original_class,
)
from tightfit.stages.trace.capture_errors import attribute_change_message
from tightfit.stages.trace.code_inspection import (
    builds_strings,
    cell_content,
    closure_cells,
    code_names,
    code_strings,
    global_reads,
    global_writes,
    is_called_from_capture,
    is_called_from_torch,
    is_functools_function,
    is_plan_namespace,
    is_tightfit_code,
    nested_codes,
    short_path,
)
from tightfit.stages.trace.guards.function_caches import describe_cache
from tightfit.stages.trace.guards.guard_source import (
    INTERNAL_FIELDS,
    UNREACHABLE,
    GuardPath,
    GuardSource,
    StateSnapshot,
    is_dunder,
    is_unchanged,
)
from tightfit.stages.trace.guards.namespaces import (
    StatefulIteratorError,
    is_data,
    is_plain_data,
    plain_data_names,
    reject_stateful_iterators,
)
from tightfit.stages.trace.guards.reachable_state import (
    REGISTERED_FIELDS,
    ReachableState,
    join_name,
)

_HEAP_TYPE = 1 << 9

_TORCH_LIBRARY_FOLDER = f"{Path(torch.__file__).parent / '_library'}{os.sep}"
_TORCH_OPS_FILE = torch._ops.__file__


class AttributeRecorder(ReachableState):
    """What the forward of a model did read of what it can.

    `codes` are the codes outside installed packages that ran, with their globals, `named` the
    modules whose registered modules, parameters or buffers were walked through.
    """

    def __init__(self, model: nn.Module) -> None:
        self.on = False
        self.busy = False
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.named: dict[tuple[str, str], None] = {}
        self.paths: dict[int, str] = {id(module): path for path, module in model.named_modules()}
        self._patched: dict[type, Any] = {}
        super().__init__(model)

    def _patch(self, kind: type) -> bool:
        """Lets reads of objects of a class be recorded; False where that is not possible."""
        if kind in self._patched:
            return True
        if not kind.__flags__ & _HEAP_TYPE:
            return False
        own = vars(kind).get("__getattribute__", MISSING)
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

    def __enter__(self) -> AttributeRecorder:
        self._patch(nn.Module)
        return self

    def __exit__(self, *_: object) -> None:
        self.problems += [
            attribute_change_message(shown, name, True, self.codes)
            for shown, name in self.spaces.finish()
        ]
        for kind, own in self._patched.items():
            if own is MISSING:
                del kind.__getattribute__
            else:
                kind.__getattribute__ = own  # type: ignore[method-assign]
        self._patched.clear()

    def found(self, value: Any, place: GuardPath, shown: str) -> None:
        """Takes a value that was read; raises AdvancingError where the forward would use it up."""
        if self.on:
            try:
                reject_stateful_iterators(value, shown)
            except StatefulIteratorError as error:
                self.problems.append(str(error))
                raise
        self.discover(value, place, shown)

    def note(self, thing: Any, name: str) -> None:
        """Records that an attribute of a thing was asked for."""
        fields = object.__getattribute__(thing, "__dict__")
        holder = self.holders.get(("fields", id(fields)))
        if holder is None:
            return
        if name == "__dict__":
            if not is_called_from_torch():
                self._note_all(holder)
            return
        if isinstance(holder.thing, nn.Module):
            self._note_of_module(holder, name)
        elif not is_dunder(name):
            self._note_field(holder, name)

    def copied(self, thing: Any) -> None:
        """Records that all of a thing was asked for from C."""
        holder = self.holders.get(("fields", id(instance_fields(thing))))
        if holder is not None and not isinstance(thing, nn.Module):
            self._note_all(holder)

    def returned(self, frame: types.FrameType, result: Any) -> None:
        """Takes what a function that keeps its results returned."""
        if self.caches.ended(frame, result):
            self.discover(result, (UNREACHABLE,), describe_cache(frame.f_code))

    def left(self, frame: types.FrameType) -> None:
        """Records what the code of a frame that ends may have asked for by
        `object.__getattribute__`, which records nothing: the fields whose names it has at its end,
        or all where it makes names."""
        code = frame.f_code
        if "__getattribute__" not in code.co_names or is_installed_code(code, frame.f_globals):
            return
        inside = list(frame.f_locals.values())
        texts = {*code_strings(code), *(text for text in inside if isinstance(text, str))}
        for thing in inside:
            holder = self.holders.get(("fields", id(instance_fields(thing))))
            if holder is not None:
                every = holder.known if builds_strings(code) else texts & holder.known.keys()
                for name in sorted(every):
                    self.note(thing, name)

    def _note_all(self, holder: GuardSource) -> None:
        for name in list(holder.known):
            if name not in INTERNAL_FIELDS:
                self._note_field(holder, name)
        names = sorted(map(str, holder.known))
        key = ("names", id(vars(holder.thing)))
        known = GuardSource(holder.place, holder.shown, "names", holder.thing, {"": names})
        self.holders.setdefault(key, known).read("")

    def _note_of_module(self, holder: GuardSource, name: str) -> None:
        foreign = id(vars(holder.thing)) in self.foreign
        if (
            foreign
            and name in INTERNAL_FIELDS
            and name not in (*REGISTERED_FIELDS, "__dict__", "__class__")
        ):
            self._note_field(holder, name)
        elif name in REGISTERED_FIELDS:
            path = self.paths.get(id(holder.thing))
            if path is not None and (path, name) not in self.named and not is_called_from_capture():
                self.named[path, name] = None
        elif name not in INTERNAL_FIELDS and name not in holder.reads and not is_dunder(name):
            registered = any(name in vars(holder.thing)[names] for names in REGISTERED_FIELDS)
            if not registered or name in holder.known:
                self._note_field(holder, name)
            elif foreign:
                for names in REGISTERED_FIELDS[1:]:
                    if name in vars(holder.thing)[names]:
                        holder.read(names)

    def _note_field(self, holder: GuardSource, name: str) -> None:
        if name in holder.reads or self._is_set_in_run(holder, name):
            return
        value = holder.read(name)
        if value is MISSING:
            self._note_class(holder, name)
        else:
            self.found(value, (*holder.place, ("field", name)), join_name(holder.shown, name))

    def _is_set_in_run(self, holder: GuardSource, name: str) -> bool:
        """Whether the forward has set a field since it began, so that it reads what it has made."""
        fields = holder.thing if isinstance(holder.thing, dict) else vars(holder.thing)
        kept = self.kept.get(id(fields))
        if not self.on or kept is None or kept.names is not None:
            return False
        start = kept.at_start.get(name, MISSING)
        return not is_unchanged(start, fields.get(name, MISSING))

    def _note_class(self, holder: GuardSource, name: str) -> None:
        kind = original_class(holder.thing)
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner in (nn.Module, object):
            return
        key = ("class", id(kind))
        if key not in self.holders:
            known = {k: v for base in reversed(kind.__mro__) for k, v in vars(base).items()}
            known.pop("__getattribute__", None)
            self.holders[key] = GuardSource(holder.place, holder.shown, "class", kind, known)
            self._alive.append(kind)
        class_holder = self.holders[key]
        value = class_holder.read(name)
        if value is not MISSING:
            self.found(value, (*holder.place, ("class", name)), join_name(holder.shown, name))

    def ran(self, frame: types.FrameType) -> None:
        """Records what the code of a frame that begins to run names outside itself."""
        code = frame.f_code
        self.caches.began(frame)
        if code in self._ran:
            return
        if is_installed_code(code, frame.f_globals) or is_tightfit_code(code.co_filename):
            self._ran.add(code)
            return
        if _runs_in_custom_operator(frame):
            return
        self._ran.add(code)
        if is_plan_namespace(frame.f_globals):
            return
        self.codes[code] = frame.f_globals
        self.spaces.ran(frame)
        place, function = self.functions.get(code, (None, None))
        self._note_globals(code, frame.f_globals, place)
        self._note_closure(code, frame, place, function)

    def _note_globals(
        self, code: types.CodeType, names: dict[str, Any], place: GuardPath | None
    ) -> None:
        wanted = [name for name, _ in global_reads(code) if name in names]
        if "globals" in code.co_names:
            wanted += plain_data_names(code_names(code), names)
        written = global_writes(code)
        if not wanted and not written:
            return
        holder = self._globals_holder(names, place)
        if holder is None:
            return
        for name in [*wanted, *sorted(written)]:
            if name not in holder.known:
                holder.known[name] = names.get(name, MISSING)
        if written:
            self._keep_names(holder, names, written)
        for name in wanted:
            value = holder.read(name)
            self.found(value, (*holder.place, ("global", name)), f"the global {name}")

    def _globals_holder(self, names: dict[str, Any], place: GuardPath | None) -> GuardSource | None:
        key = ("fields", id(names))
        if key not in self.holders:
            module = names.get("__name__", "")
            here = module in sys.modules and vars(sys.modules[module]) is names
            reached = place is not None and place[0] != UNREACHABLE
            if not here and not reached:
                return None
            found = (*(place or ()), ("globals",)) if reached else (("python", module),)
            self.holders[key] = GuardSource(found, "", "fields", names, {})
            self._alive.append(names)
        return self.holders[key]

    def _keep_names(self, holder: GuardSource, names: dict[str, Any], written: set[str]) -> None:
        fresh = StateSnapshot("", names, {}, frozenset(), place=holder.place)
        kept = self.kept.setdefault(id(names), fresh)
        kept.names = (kept.names or frozenset()) | written
        for name in written:
            if name in names:
                kept.before.setdefault(name, names[name])
        kept.at_start = dict(kept.before)

    def _note_closure(
        self, code: types.CodeType, frame: types.FrameType, place: GuardPath | None, function: Any
    ) -> None:
        for at, alike in self._alike.get(code, {}).values():
            self._note_cells(code, alike, at)
            self.spaces.note_defaults(alike, at)
        for name in code.co_freevars:
            if function is None and is_data(value := frame.f_locals.get(name)):
                self.problems.append(
                    f"{code.co_name} reads {name!r}, {_describe_kind(value)} from around it, which "
                    "cannot "
                    f"be watched; pass it as an argument or keep it as an attribute of the model"
                )

    def _note_cells(self, code: types.CodeType, function: Any, place: GuardPath) -> None:
        """Notes what a function has around it: others of the same code may have something else."""
        around = dict(closure_cells(function))
        for name in code.co_freevars:
            if name in around:
                self._note_cell(function, place, name, cell_content(around[name]))

    def _note_cell(self, function: Any, place: GuardPath, name: str, value: Any) -> None:
        key = ("cells", id(function))
        if key not in self.holders:
            self.holders[key] = GuardSource(place, function.__name__, "cells", function, {})
            self._alive.append(function)
        holder = self.holders[key]
        holder.known.setdefault(name, value)
        holder.read(name)
        self.found(value, (*place, ("cell", name)), f"the closure's {name}")


def _describe_kind(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _runs_in_custom_operator(frame: types.FrameType) -> bool:
    """True for code that an operator of `torch.library` runs: its kernels and its derivative are
    part of the operator, and trusted with it."""
    back = frame.f_back
    while back is not None and not is_tightfit_code(back.f_code.co_filename):
        file = back.f_code.co_filename
        if file.startswith(_TORCH_LIBRARY_FOLDER) or (
            file == _TORCH_OPS_FILE and back.f_code.co_qualname.startswith("OpOverload")
        ):
            return True
        back = back.f_back
    return False


LocatedFunction = tuple[GuardPath, Any]


def locate_executed_code(reader: AttributeRecorder) -> tuple[list[GuardSource], list[str]]:
    """Holders of the kind "code" for all functions that ran, and sentences on those that cannot be
    found again. What a function makes for itself is part of its code."""
    found: dict[int, GuardSource] = {}
    problems = []
    for code, names in reader.codes.items():
        if code in reader.members:
            continue
        where = _reachable_function(reader, code) or _find_by_name(reader, code, names)
        if where is None:
            if not _is_import_code(code, reader):
                problems.append(_unlocated_code_message(code))
            continue
        place, function = where
        shown = f"the code of {function.__qualname__}"
        holder = GuardSource(place, shown, "code", function, {"": function})
        holder.read("")
        found.setdefault(id(function), holder)
    return list(found.values()), problems


def record_decorator_settings(reader: AttributeRecorder, holders: list[GuardSource]) -> None:
    """Notes what the decorators of packages and of Python's library, in which functions that ran
    stand, were made with."""
    for place in [holder.place for holder in holders]:
        for end, step in enumerate(place):
            wrapper = reader.wrappers.get(place[:end]) if step[0] == "cell" else None
            if wrapper is None:
                continue
            key = ("cells", id(wrapper))
            for name, cell in closure_cells(wrapper):
                value = cell_content(cell)
                if _is_setting(value) or (type(value) is dict and is_functools_function(wrapper)):
                    holder = GuardSource(place[:end], wrapper.__name__, "cells", wrapper, {})
                    holder = reader.holders.setdefault(key, holder)
                    holder.known.setdefault(name, value)
                    holder.read(name)


def _is_setting(value: Any) -> bool:
    owner = getattr(value, "__self__", None)
    plain = is_plain_data(value) and not isinstance(value, list | dict | set)
    return plain or is_decorator_context(value) or is_decorator_context(owner)


def _reachable_function(reader: AttributeRecorder, code: types.CodeType) -> LocatedFunction | None:
    place, function = reader.functions.get(code, ((UNREACHABLE,), None))
    return None if place[0] == UNREACHABLE else (place, function)


def _find_by_name(
    reader: AttributeRecorder, code: types.CodeType, names: dict[str, Any]
) -> LocatedFunction | None:
    """The function that stands under the name of a code, in its module or in a class there, and is
    that code or makes it."""
    module = sys.modules.get(str(names.get("__name__")))
    if module is None or vars(module) is not names:
        return None
    name, *inner = code.co_qualname.partition(".<locals>")[0].split(".")
    place: GuardPath = (("python", str(names["__name__"])), ("global", name))
    thing = names.get(name, MISSING)
    for part in inner:
        bases = thing.__mro__ if isinstance(thing, type) else ()
        thing = next((vars(base)[part] for base in bases if part in vars(base)), MISSING)
        place = (*place, ("class", part))
    reader.enter_function(thing, place)
    return _reachable_function(reader, code)


def _is_import_code(code: types.CodeType, reader: AttributeRecorder) -> bool:
    """True for the code of a module that the forward itself imported, and what it made there."""
    return any(
        code is one or code in nested_codes(one)
        for one in reader.codes
        if one.co_name == "<module>"
    )


def _unlocated_code_message(code: types.CodeType) -> str:
    return (
        f"the forward runs {code.co_qualname} at {short_path(code.co_filename)}:"
        f"{code.co_firstlineno}, which cannot be found again from the model, so that other code in "
        f"its place would not be noticed; define it in a module or keep it as an attribute"
    )
