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

from tightfit.stages.runtime.guards.compare import encodings_match
from tightfit.stages.runtime.guards.encode import MISSING, encode_value, tensor_digest
from tightfit.stages.runtime.guards.global_state import ATTENTION_STATES
from tightfit.stages.trace.capture_errors import (
    attribute_change_message,
    generator_draw_message,
    hook_change_message,
    line_suffix,
    source_part_name,
    submodule_hook_message,
)
from tightfit.stages.trace.code_inspection import find_line
from tightfit.stages.trace.constant_folding import ConstantFolder
from tightfit.stages.trace.guards.attribute_recorder import (
    AttributeRecorder,
    locate_executed_code,
    record_decorator_settings,
)
from tightfit.stages.trace.guards.effect_recorder import EffectRecorder
from tightfit.stages.trace.guards.global_state import (
    UNWATCHED_CODE,
    GlobalStateMonitor,
    install_profiler,
)
from tightfit.stages.trace.guards.guard_source import (
    INTERNAL_FIELDS,
    UNREACHABLE,
    GuardSource,
    StateSnapshot,
    compared_contents,
    has_same_contents,
    is_random_generator,
    is_unchanged,
    matches_tensor_entry,
    restore_snapshot,
    undo_change,
)
from tightfit.stages.trace.guards.lazy_init import LazyInitDetector
from tightfit.stages.trace.guards.namespaces import StatefulIteratorError
from tightfit.stages.trace.guards.reachable_state import (
    BACKWARD_HOOK_FIELDS,
    HOOK_FIELDS,
    REGISTERED_FIELDS,
    describe_model_structure,
    hook_computed_attributes,
    hook_name,
    is_computing_hook,
    model_state_paths,
)
from tightfit.stages.trace.guards.tensor_queries import TensorQueries
from tightfit.util.errors import ModelError

_RNN_WEIGHT_LISTS = ("_flat_weights", "_flat_weight_refs")
"""Lists of a recurrent layer's weights, which PyTorch makes anew where a weight is replaced."""
_SCRIPT_TYPES = (torch.jit.ScriptFunction, torch.jit.ScriptModule)
_COPY_METHODS = ("__reduce_ex__", "__getstate__")
"""Built-in methods that take all fields of an object."""


@contextlib.contextmanager
def record_guards(
    model: nn.Module, label: str = "the model", profiled: bool = True
) -> Iterator[GuardRecorder]:
    """Watches the runs of the model's forward within it, and afterwards gives the model, its
    containers and all random generators what they held. Without Python's profiler, which is most of
    the time, what the forward reads is not all seen.

    Raises ModelError, as `GuardRecorder.refuse` does, in place of another error where the forward
    did what a plan cannot do, since that is the likely cause."""
    watcher = GuardRecorder(model, profiled)
    try:
        with watcher:
            yield watcher
    except StatefulIteratorError as error:
        raise ModelError(f"{label}: {error}") from None
    except ModelError:
        raise
    except Exception as error:
        if watcher.problems:
            raise ModelError(f"{label}: {watcher.problems[0]}") from error
        raise


class GuardRecorder:
    """What the forward of a model reads and changes."""

    def __init__(self, model: nn.Module, profiled: bool = True) -> None:
        self.model = model
        self.profiled = profiled
        self.problems: list[str] = []
        self._reader = AttributeRecorder(model)
        self._moved = GlobalStateMonitor()
        self.asked = TensorQueries(self._reader.caches.making)
        self._structure = describe_model_structure(model)
        self._own = model_state_paths(model)
        self._stack = contextlib.ExitStack()
        self.changed: dict[tuple[int, Any], str] = {}
        """What the forward changed, by what holds it and its name there, with a sentence."""
        self._lasting: LazyInitDetector | None = None
        self._settled = False
        self._leaving = False
        self.effects = EffectRecorder(self._reader, self._own)
        self._ran: list[GuardSource] = []

    def names(self) -> set[str]:
        """All names in the user's code that ran."""
        return {name for code in self._reader.codes for name in code.co_names}

    def calls_script_functions(self) -> bool:
        """Whether code that ran can reach a function or a module of TorchScript."""
        reached = (value for names in self._reader.codes.values() for value in names.values())
        return any(isinstance(value, _SCRIPT_TYPES) for value in (*reached, *self.model.modules()))

    def __enter__(self) -> GuardRecorder:
        self._check_hooks()
        self._reader.note(self.model, "forward")
        self._stack.enter_context(self._reader)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._reader.caches.forget()
        for kept in self._reader.kept.values():
            restore_snapshot(kept)
        with _disable_modes(), torch.no_grad():
            for tensor, copy in self._reader.tensors.values():
                if tensor_digest(tensor) != tensor_digest(copy):
                    tensor.detach().copy_(copy)
        self._moved.put_back()
        self.effects.forget_counters()
        self._ran, lost = locate_executed_code(self._reader)
        record_decorator_settings(self._reader, self._ran)
        self._check_reads()
        changed = dict.fromkeys(self.effects.unsupported(self.changed, self._settled))
        found = (
            self._moved.problems,
            self.asked.problems,
            self.effects.closure_problems(),
            self._reader.problems,
            self._reader.caches.finish(),
            lost,
        )
        self.problems += [*changed, *itertools.chain(*found)]

    def check_cached_constants(self, label: str, constants: Iterable[torch.Tensor]) -> None:
        """Raises ModelError where a function keeps one of the constants, and it can change."""
        self._reader.caches.check(label, constants)

    def refuse(self, label: str) -> None:
        """Raises ModelError naming the first thing that a plan cannot do or be sure of."""
        if self.problems:
            raise ModelError(f"{label}: {self.problems[0]}")

    @contextlib.contextmanager
    def leaving(self, known: ConstantFolder) -> Iterator[None]:
        """Within it what a run changes is left for the next one; `known` has the true tensors."""
        self._lasting = LazyInitDetector(self._reader, self._own, known)
        self._leaving = True
        try:
            yield
        finally:
            self._leaving = False
            for kept in self._reader.kept.values():
                restore_snapshot(kept)

    def settle(self) -> None:
        """Takes what the forward changed for what it makes only once, or for what a plan can do,
        too, where two runs within `leaving` show it to be that."""
        assert self._lasting is not None
        self._settled = self._lasting.settle(self.model, set(self.changed))
        self.effects.settle()

    def description(self) -> dict[str, Any]:
        """What the forward hung on, as JSON: see `stages.runtime.guards.state`."""
        own = self._own
        hooks = self._structure["hooks"]
        if self._settled and self._lasting is not None:
            hooks = _either_hooks(hooks, self._lasting.hooks)
        return {
            **self._structure,
            "hooks": hooks,
            "names": [[path, name, self._names(path, name)] for path, name in self._reader.named],
            "sources": [self._describe(h, own) for h in (*self._holders(), *self._ran)],
            "global_state": self._states(),
            "side_effects": [effect.written() for effect in self.effects.described()],
        }

    def _holders(self) -> Iterator[GuardSource]:
        for holder in self._reader.holders.values():
            if holder.reads:
                yield holder

    def _describe(self, holder: GuardSource, own: dict[int, str]) -> dict[str, Any]:
        with _disable_modes():
            reads = {name: encode_value(value, own) for name, value in sorted(holder.reads.items())}
            place = [
                [step[0], *(encode_value(part, own) for part in step[1:])] for step in holder.place
            ]
        found = self._lasting.later if self._settled and self._lasting is not None else {}
        for name, before in reads.items():
            later = found.get((id(holder), name), before)
            if not encodings_match(before, later):
                reads[name] = ["either", before, later]
        kind, shown = holder.kind, holder.shown
        return {"path": place, "label": shown, "kind": kind, "values": reads}

    def _names(self, path: str, name: str) -> list[str]:
        return list(vars(self.model.get_submodule(path))[name])

    def _states(self) -> dict[str, Any]:
        attends = self._moved.uses_attention
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
            kept.at_start = compared_contents(kept)
        self._moved.start()
        self._reader.on = True
        try:
            with install_profiler(self._profile) if self.profiled else contextlib.nullcontext():
                yield
        finally:
            self._reader.on = False
            self._moved.stop(self._reader.codes)
            self._check_changes()

    def _profile(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if self._reader.busy or frame.f_code is UNWATCHED_CODE:
            return
        self._reader.busy = True
        try:
            if id(frame.f_code) not in self.asked.irrelevant_codes and event in ("call", "return"):
                self.asked.ran(frame)
            if event == "call":
                self._reader.ran(frame)
                self._moved.called(frame)
            elif event == "return":
                self._reader.left(frame)
                self._reader.returned(frame, argument)
            elif event == "c_call":
                self._moved.record_builtin_call(argument, frame)
                if getattr(argument, "__name__", "") in _COPY_METHODS:
                    self._reader.copied(getattr(argument, "__self__", None))
        finally:
            self._reader.busy = False

    def _check_hooks(self) -> None:
        hooks = torch.nn.modules.module
        for name, found in vars(hooks).items():
            if name.startswith("_global_") and name.endswith("_hooks") and found:
                hook = hook_name(next(iter(found.values())))
                self.problems.append(
                    f"PyTorch has a hook for all modules ({hook}), "
                    f"which a plan would not run; remove it before planning"
                )
        for path, module in self.model.named_modules():
            for name in BACKWARD_HOOK_FIELDS if path else ():
                for hook in vars(module)[name].values():
                    if not is_computing_hook(hook):
                        self.problems.append(submodule_hook_message(path, name, hook))

    def _check_changes(self) -> None:
        if self.effects.probing:
            return
        if not self._leaving:
            self.effects.collect()
        changed: dict[tuple[int, Any], StateSnapshot] = {}
        found: dict[tuple[int, Any], tuple[StateSnapshot, Any]] = {}
        for kept in list(self._reader.kept.values()):
            if is_random_generator(kept.thing):
                if compared_contents(kept) != kept.at_start:
                    self.problems.append(generator_draw_message(kept, self._moved.draws))
                continue
            for name, sentence in self._changes(kept):
                key = id(kept.thing), None if id(kept.thing) in self._reader.hooks else name
                changed[key] = kept
                found[key] = kept, name
                if not self._leaving:
                    self.changed.setdefault(key, sentence)
                    undo_change(kept, name)
        if self._leaving and self._lasting is not None:
            self._lasting.ran(changed)
            self.effects.ran(found)

    def _changes(self, kept: StateSnapshot) -> Iterator[tuple[Any, str]]:
        """The names in a dictionary, or None for another thing, that the last run changed."""
        now = compared_contents(kept)
        if isinstance(kept.thing, dict):
            yield from self._changes_of_fields(kept, now)
        elif sentence := self._change(kept, now):
            yield None, sentence

    def _change(self, kept: StateSnapshot, now: Any) -> str | None:
        if has_same_contents(kept.at_start, now):
            return None
        name = kept.shown.removeprefix("the global ").rpartition(".")[2].partition("[")[0]
        codes = self._reader.codes
        line = find_line(codes, "read", name) or find_line(codes, "name", name)
        remedy = "change it outside the model"
        if isinstance(now, list) and any(isinstance(item, torch.Tensor) for item in now):
            remedy = "return the tensors that it puts there, or put them into a list of its own"
        what = f"{kept.shown}{line_suffix(line)}"
        return f"the forward changes {what}, which a plan would not do; {remedy}"

    def _changes_of_fields(
        self, kept: StateSnapshot, now: dict[str, Any]
    ) -> Iterator[tuple[Any, str]]:
        holder = self._reader.holders.get(("fields", id(kept.thing)))
        for name in [*now, *(name for name in kept.at_start if name not in now)]:
            before, after = kept.at_start.get(name, MISSING), now.get(name, MISSING)
            if is_unchanged(before, after) or name in HOOK_FIELDS or self._excused(kept, name):
                continue
            if matches_tensor_entry(kept.at_start, name, after):
                continue
            if id(kept.thing) in self._reader.hooks:
                yield name, hook_change_message(kept.shown, after if before is MISSING else before)
            else:
                yield (
                    name,
                    attribute_change_message(
                        kept.shown, name, holder is not None, self._reader.codes
                    ),
                )

    def _excused(self, kept: StateSnapshot, name: str) -> bool:
        """True for a buffer's new value, which the capture sees, for what a computing hook sets,
        and for what PyTorch keeps of a module for itself."""
        holder = self._reader.holders.get(("fields", id(kept.thing)))
        if holder is None:
            return self._is_buffer(kept, name)
        if not isinstance(holder.thing, nn.Module):
            return False
        of_torch = isinstance(holder.thing, nn.RNNBase) and name in _RNN_WEIGHT_LISTS
        return of_torch or name in INTERNAL_FIELDS or name in hook_computed_attributes(holder.thing)

    def _is_buffer(self, kept: StateSnapshot, name: str) -> bool:
        owned = any(vars(module)["_buffers"] is kept.thing for module in self.model.modules())
        return owned and name in kept.at_start

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
            if holder.place[0] == UNREACHABLE:
                self.problems.append(
                    f"the forward reads {next(iter(holder.reads))!r} of a "
                    f"{type(holder.thing).__name__} in a set, or that is a key or kept by a cached "
                    f"function, where it cannot be found again; keep it in a list"
                )
            for name, value in list(holder.reads.items()):
                self._check_read(holder, name, value)

    def _check_read(self, holder: GuardSource, name: str, value: Any) -> None:
        module = holder.thing
        if isinstance(module, nn.Module):
            if name in hook_computed_attributes(module):
                del holder.reads[name]
                return
            if id(vars(module)) in self._reader.foreign and name in REGISTERED_FIELDS:
                return
        for tensor in _tensors(value):
            if tensor.requires_grad and id(tensor) not in self._own:
                self.problems.append(
                    f"{source_part_name(holder, name)} holds a tensor that requires a gradient and "
                    "is no "
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


def _disable_modes() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
