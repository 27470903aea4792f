"""Watches a model's forward while it is captured.

A plan runs what the capture saw. What the forward read beside tensors must stay as it was: it is
described, for the generated package to compare at each call. What the forward does beside making
tensors a plan would not do: it is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from tightfit.schemas.errors import ModelError
from tightfit.stages.device.readings import ABSENT, digest_of, encode
from tightfit.stages.device.states import ATTENTION_STATES
from tightfit.stages.device.written import agree
from tightfit.stages.trace.advancing import AdvancingError
from tightfit.stages.trace.asked import Asked
from tightfit.stages.trace.changes import (
    as_for_tensors,
    chosen,
    holds_the_same,
    restore,
    unchanged,
    undo,
)
from tightfit.stages.trace.codes import line_that
from tightfit.stages.trace.executed import decorated, executed
from tightfit.stages.trace.holders import INTERNAL, NOWHERE, Holder, Kept, is_generator
from tightfit.stages.trace.known import Known
from tightfit.stages.trace.lasting import Lasting
from tightfit.stages.trace.moved import Moved
from tightfit.stages.trace.profiling import profiled
from tightfit.stages.trace.reach import REGISTERED
from tightfit.stages.trace.reader import Reader
from tightfit.stages.trace.sentences import at, drawn, named, on_hook, on_new_hook, on_set
from tightfit.stages.trace.structure import (
    HOOK_FIELDS,
    computed,
    name_of,
    only_computes,
    own_paths,
    structure,
)

_OF_RECURRENT = ("_flat_weights", "_flat_weight_refs")
"""Lists of a recurrent layer's weights, which PyTorch makes anew where a weight is replaced."""
_COPYING = ("__reduce_ex__", "__getstate__")
"""Built-in methods that take all fields of an object."""


@contextlib.contextmanager
def watching(model: nn.Module, label: str = "the model") -> Iterator[Watcher]:
    """Watches the runs of the model's forward within it, and afterwards gives the model, its
    containers and all random generators what they held.

    Raises ModelError, as `Watcher.refuse` does, in place of another error where the forward did
    what a plan cannot do, since that is the likely cause.
    """
    watcher = Watcher(model)
    try:
        with watcher:
            yield watcher
    except AdvancingError as error:
        raise ModelError(f"{label}: {error}") from None
    except ModelError:
        raise
    except Exception as error:
        if watcher.problems:
            raise ModelError(f"{label}: {watcher.problems[0]}") from error
        raise


class Watcher:
    """What the forward of a model reads and changes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.problems: list[str] = []
        self._reader = Reader(model)
        self._moved = Moved()
        self.asked = Asked(self._reader.caches.making)
        self._structure = structure(model)
        self._own = own_paths(model)
        self._stack = contextlib.ExitStack()
        self.changed: dict[tuple[int, Any], str] = {}
        """What the forward changed, by what holds it and its name there, with a sentence."""
        self._lasting: Lasting | None = None
        self._settled = False
        self._ran: list[Holder] = []

    def names(self) -> set[str]:
        """All names in the user's code that ran."""
        return {name for code in self._reader.codes for name in code.co_names}

    def __enter__(self) -> Watcher:
        self._check_hooks()
        self._reader.note(self.model, "forward")
        self._stack.enter_context(self._reader)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._reader.caches.forget()
        for kept in self._reader.kept.values():
            restore(kept)
        with _no_modes(), torch.no_grad():
            for tensor, copy in self._reader.tensors.values():
                if digest_of(tensor) != digest_of(copy):
                    tensor.detach().copy_(copy)
        self._moved.put_back()
        self._ran, lost = executed(self._reader)
        decorated(self._reader, self._ran)
        self._check_reads()
        changed = [] if self._settled else dict.fromkeys(self.changed.values())
        found = (
            self._moved.problems,
            self.asked.problems,
            self._reader.problems,
            self._reader.caches.finish(),
            lost,
        )
        self.problems += [*changed, *itertools.chain(*found)]

    def check_kept(self, label: str, constants: Iterable[torch.Tensor]) -> None:
        """Raises ModelError where a function keeps one of the constants, and it can change."""
        self._reader.caches.check(label, constants)

    def refuse(self, label: str) -> None:
        """Raises ModelError naming the first thing that a plan cannot do or be sure of."""
        if self.problems:
            raise ModelError(f"{label}: {self.problems[0]}")

    @contextlib.contextmanager
    def leaving(self, known: Known) -> Iterator[None]:
        """Within it what a run changes is left for the next one; `known` has the true tensors."""
        self._lasting = Lasting(self._reader, self._own, known)
        yield

    def settle(self) -> None:
        """Takes what the forward changed for what it makes only once, where two runs within
        `leaving` show it to be that."""
        if self._lasting is not None:
            self._settled = self._lasting.settle(self.model, set(self.changed))

    def description(self) -> dict[str, Any]:
        """What the forward hung on, as JSON: see `stages.device.form`."""
        own = self._own
        hooks = self._structure["hooks"]
        if self._settled and self._lasting is not None:
            hooks = _either_hooks(hooks, self._lasting.hooks)
        return {
            **self._structure,
            "hooks": hooks,
            "names": [[path, name, self._names(path, name)] for path, name in self._reader.named],
            "holders": [self._describe(h, own) for h in (*self._holders(), *self._ran)],
            "states": self._states(),
        }

    def _holders(self) -> Iterator[Holder]:
        for holder in self._reader.holders.values():
            if holder.reads:
                yield holder

    def _describe(self, holder: Holder, own: dict[int, str]) -> dict[str, Any]:
        with _no_modes():
            reads = {name: encode(value, own) for name, value in sorted(holder.reads.items())}
            place = [[step[0], *(encode(part, own) for part in step[1:])] for step in holder.place]
        found = self._lasting.later if self._settled and self._lasting is not None else {}
        for name, before in reads.items():
            later = found.get((id(holder), name), before)
            if not agree(before, later):
                reads[name] = ["either", before, later]
        kind, shown = holder.kind, holder.shown
        return {"place": place, "shown": shown, "kind": kind, "reads": reads}

    def _names(self, path: str, name: str) -> list[str]:
        return list(vars(self.model.get_submodule(path))[name])

    def _states(self) -> dict[str, Any]:
        attends = self._moved.attends
        return {
            name: value
            for name, value in self._moved.states.items()
            if attends or name not in ATTENTION_STATES
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within it the model's forward runs once, or its backward, and is watched."""
        if self._reader.on:
            yield
            return
        self._reader.caches.forget()
        for kept in self._reader.kept.values():
            kept.at_start = chosen(kept)
        self._moved.start()
        self._reader.on = True
        try:
            with profiled(self._profile):
                yield
        finally:
            self._reader.on = False
            self._moved.stop(self._reader.codes)
            self._check_changes()

    def _profile(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if self._reader.busy:
            return
        self._reader.busy = True
        try:
            if id(frame.f_code) not in self.asked.quiet and event in ("call", "return"):
                self.asked.ran(frame)
            if event == "call":
                self._reader.ran(frame)
                self._moved.called(frame)
            elif event == "return":
                self._reader.left(frame)
                self._reader.returned(frame, argument)
            elif event == "c_call":
                self._moved.built_in(argument, frame)
                if getattr(argument, "__name__", "") in _COPYING:
                    self._reader.copied(getattr(argument, "__self__", None))
        finally:
            self._reader.busy = False

    def _check_hooks(self) -> None:
        hooks = torch.nn.modules.module
        for name, found in vars(hooks).items():
            if name.startswith("_global_") and name.endswith("_hooks") and found:
                hook = name_of(next(iter(found.values())))
                self.problems.append(
                    f"PyTorch has a hook for all modules ({hook}), "
                    f"which a plan would not run; remove it before planning"
                )
        for path, module in self.model.named_modules():
            for name in HOOK_FIELDS if path else ():
                for hook in vars(module)[name].values():
                    if not only_computes(hook):
                        self.problems.append(on_hook(path, name, hook))

    def _check_changes(self) -> None:
        changed: dict[tuple[int, Any], Kept] = {}
        for kept in list(self._reader.kept.values()):
            if is_generator(kept.thing):
                if chosen(kept) != kept.at_start:
                    self.problems.append(drawn(kept, self._moved.draws))
                continue
            for name, sentence in self._changes(kept):
                key = id(kept.thing), None if id(kept.thing) in self._reader.hooks else name
                changed[key] = kept
                if self._lasting is None:
                    self.changed.setdefault(key, sentence)
                    undo(kept, name)
        if self._lasting is not None:
            self._lasting.ran(changed)

    def _changes(self, kept: Kept) -> Iterator[tuple[Any, str]]:
        """The names in a dictionary, or None for another thing, that the last run changed."""
        now = chosen(kept)
        if isinstance(kept.thing, dict):
            yield from self._changes_of_fields(kept, now)
        elif sentence := self._change(kept, now):
            yield None, sentence

    def _change(self, kept: Kept, now: Any) -> str | None:
        if holds_the_same(kept.at_start, now):
            return None
        name = kept.shown.removeprefix("the global ").rpartition(".")[2].partition("[")[0]
        codes = self._reader.codes
        line = line_that(codes, "read", name) or line_that(codes, "name", name)
        remedy = "change it outside the model"
        if isinstance(now, list) and any(isinstance(item, torch.Tensor) for item in now):
            remedy = "return the tensors that it puts there, or put them into a list of its own"
        return f"the forward changes {kept.shown}{at(line)}, which a plan would not do; {remedy}"

    def _changes_of_fields(self, kept: Kept, now: dict[str, Any]) -> Iterator[tuple[Any, str]]:
        holder = self._reader.holders.get(("fields", id(kept.thing)))
        for name in [*now, *(name for name in kept.at_start if name not in now)]:
            before, after = kept.at_start.get(name, ABSENT), now.get(name, ABSENT)
            if unchanged(before, after) or name in HOOK_FIELDS or self._excused(kept, name):
                continue
            if as_for_tensors(kept.at_start, name, after):
                continue
            if id(kept.thing) in self._reader.hooks:
                yield name, on_new_hook(kept.shown, after if before is ABSENT else before)
            else:
                yield name, on_set(kept.shown, name, holder is not None, self._reader.codes)

    def _excused(self, kept: Kept, name: str) -> bool:
        """True for a buffer's new value, which the capture sees, for what a computing hook sets,
        and for what PyTorch keeps of a module for itself."""
        holder = self._reader.holders.get(("fields", id(kept.thing)))
        if holder is None:
            return self._is_buffer(kept, name)
        if not isinstance(holder.thing, nn.Module):
            return False
        of_torch = isinstance(holder.thing, nn.RNNBase) and name in _OF_RECURRENT
        return of_torch or name in INTERNAL or name in computed(holder.thing)

    def _is_buffer(self, kept: Kept, name: str) -> bool:
        for fields in ("_buffers",):
            for module in self.model.modules():
                if vars(module)[fields] is kept.thing:
                    return name in kept.at_start
        return False

    def _check_reads(self) -> None:
        parameters = {id(tensor) for tensor in self.model.parameters()}
        for module, shown in self._reader.foreign.values():
            holder = self._reader.holders["fields", id(vars(module))]
            if holder.reads and any(
                weight.requires_grad and id(weight) not in parameters
                for weight in module.parameters(recurse=False)
            ):
                self.problems.append(
                    f"{shown} is a module with parameters that the model does not register; "
                    f"keep it in an attribute of its own, a ModuleList or a ModuleDict"
                )
        for holder in self._holders():
            if holder.place[0] == NOWHERE:
                self.problems.append(
                    f"the forward reads {next(iter(holder.reads))!r} of a "
                    f"{type(holder.thing).__name__} in a set, or that is a key or kept by a cached "
                    f"function, where it cannot be found again; keep it in a list"
                )
            for name, value in list(holder.reads.items()):
                self._check_read(holder, name, value)

    def _check_read(self, holder: Holder, name: str, value: Any) -> None:
        module = holder.thing
        if isinstance(module, nn.Module):
            if name in computed(module):
                del holder.reads[name]
                return
            if id(vars(module)) in self._reader.foreign and name in REGISTERED:
                return
        for tensor in _tensors(value):
            if tensor.requires_grad and id(tensor) not in self._own:
                self.problems.append(
                    f"{named(holder, name)} holds a tensor that requires a gradient and is no "
                    f"parameter of the model; register it as one"
                )


def _either_hooks(before: list[list[Any]], after: list[list[Any]]) -> list[list[Any]]:
    """The hooks of each submodule, twice where they are others afterwards."""
    one, other = ({path: names for path, *names in hooks} for hooks in (before, after))
    differing = [path for path in {**one, **other} if one.get(path) != other.get(path)]
    return [*before, *([path] for path in differing if path not in one)] + [
        [path, *other.get(path, [])] for path in differing
    ]


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | set | dict) and depth < 6:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item, depth + 1)


def _no_modes() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
