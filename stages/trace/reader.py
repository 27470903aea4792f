"""Records which plain attributes, globals and closures a model's forward reads."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.stages.device.readings import ABSENT, class_of, fields_of, installed_code
from tightfit.stages.trace.advancing import AdvancingError, check_advancing
from tightfit.stages.trace.asking import asked_by_torch, walked_by_capture
from tightfit.stages.trace.cached import shown_of
from tightfit.stages.trace.codes import (
    globals_read,
    globals_written,
    makes_texts,
    names_of,
    texts_of,
)
from tightfit.stages.trace.functions import cells_of, content_of, of_plan, own_code
from tightfit.stages.trace.holders import INTERNAL, NOWHERE, Holder, Kept, Place, is_dunder
from tightfit.stages.trace.reach import REGISTERED, Reach, join
from tightfit.stages.trace.sentences import on_set
from tightfit.stages.trace.spaces import data_named, is_data

_HEAP_TYPE = 1 << 9

_LIBRARY = f"{Path(torch.__file__).parent / '_library'}{os.sep}"
_OPERATORS = torch._ops.__file__


class Reader(Reach):
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

    def found(self, value: Any, place: Place, shown: str) -> None:
        """Takes a value that was read; raises AdvancingError where the forward would use it up."""
        if self.on:
            try:
                check_advancing(value, shown)
            except AdvancingError as error:
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
            if not asked_by_torch():
                self._note_all(holder)
            return
        if isinstance(holder.thing, nn.Module):
            self._note_of_module(holder, name)
        elif not is_dunder(name):
            self._note_field(holder, name)

    def copied(self, thing: Any) -> None:
        """Records that all of a thing was asked for from C."""
        holder = self.holders.get(("fields", id(fields_of(thing))))
        if holder is not None and not isinstance(thing, nn.Module):
            self._note_all(holder)

    def returned(self, frame: types.FrameType, result: Any) -> None:
        """Takes what a function that keeps its results returned."""
        if self.caches.ended(frame, result):
            self.discover(result, (NOWHERE,), shown_of(frame.f_code))

    def left(self, frame: types.FrameType) -> None:
        """Records what the code of a frame that ends may have asked for by
        `object.__getattribute__`, which records nothing: the fields whose names it has at its end,
        or all where it makes names."""
        code = frame.f_code
        if "__getattribute__" not in code.co_names or installed_code(code, frame.f_globals):
            return
        inside = list(frame.f_locals.values())
        texts = {*texts_of(code), *(text for text in inside if isinstance(text, str))}
        for thing in inside:
            holder = self.holders.get(("fields", id(fields_of(thing))))
            if holder is not None:
                every = holder.known if makes_texts(code) else texts & holder.known.keys()
                for name in sorted(every):
                    self.note(thing, name)

    def _note_all(self, holder: Holder) -> None:
        for name in list(holder.known):
            if name not in INTERNAL:
                self._note_field(holder, name)
        names = sorted(map(str, holder.known))
        key = ("names", id(vars(holder.thing)))
        known = Holder(holder.place, holder.shown, "names", holder.thing, {"": names})
        self.holders.setdefault(key, known).read("")

    def _note_of_module(self, holder: Holder, name: str) -> None:
        foreign = id(vars(holder.thing)) in self.foreign
        if foreign and name in INTERNAL and name not in (*REGISTERED, "__dict__", "__class__"):
            self._note_field(holder, name)
        elif name in REGISTERED:
            path = self.paths.get(id(holder.thing))
            if path is not None and (path, name) not in self.named and not walked_by_capture():
                self.named[path, name] = None
        elif name not in INTERNAL and name not in holder.reads and not is_dunder(name):
            registered = any(name in vars(holder.thing)[names] for names in REGISTERED)
            if not registered or name in holder.known:
                self._note_field(holder, name)
            elif foreign:
                for names in REGISTERED[1:]:
                    if name in vars(holder.thing)[names]:
                        holder.read(names)

    def _note_field(self, holder: Holder, name: str) -> None:
        if name in holder.reads:
            return
        value = holder.read(name)
        if value is ABSENT:
            self._note_class(holder, name)
        else:
            self.found(value, (*holder.place, ("field", name)), join(holder.shown, name))

    def _note_class(self, holder: Holder, name: str) -> None:
        kind = class_of(holder.thing)
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner in (nn.Module, object):
            return
        key = ("class", id(kind))
        if key not in self.holders:
            known = {k: v for base in reversed(kind.__mro__) for k, v in vars(base).items()}
            known.pop("__getattribute__", None)
            self.holders[key] = Holder(holder.place, holder.shown, "class", kind, known)
            self._alive.append(kind)
        class_holder = self.holders[key]
        value = class_holder.read(name)
        if value is not ABSENT:
            self.found(value, (*holder.place, ("class", name)), join(holder.shown, name))

    def ran(self, frame: types.FrameType) -> None:
        """Records what the code of a frame that begins to run names outside itself."""
        code = frame.f_code
        self.caches.began(frame)
        if code in self._ran:
            return
        if installed_code(code, frame.f_globals) or own_code(code.co_filename):
            self._ran.add(code)
            return
        if _is_of_operator(frame):
            return
        self._ran.add(code)
        if of_plan(frame.f_globals):
            return
        self.codes[code] = frame.f_globals
        self.spaces.ran(frame)
        place, function = self.functions.get(code, (None, None))
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
            self.found(value, (*holder.place, ("global", name)), f"the global {name}")

    def _globals_holder(self, names: dict[str, Any], place: Place | None) -> Holder | None:
        key = ("fields", id(names))
        if key not in self.holders:
            module = names.get("__name__", "")
            here = module in sys.modules and vars(sys.modules[module]) is names
            reached = place is not None and place[0] != NOWHERE
            if not here and not reached:
                return None
            found = (*(place or ()), ("globals",)) if reached else (("python", module),)
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
        self.found(value, (*place, ("cell", name)), f"the closure's {name}")


def _kind(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _is_of_operator(frame: types.FrameType) -> bool:
    """True for code that an operator of `torch.library` runs: its kernels and its derivative are
    part of the operator, and trusted with it."""
    back = frame.f_back
    while back is not None and not own_code(back.f_code.co_filename):
        file = back.f_code.co_filename
        if file.startswith(_LIBRARY) or (
            file == _OPERATORS and back.f_code.co_qualname.startswith("OpOverload")
        ):
            return True
        back = back.f_back
    return False
