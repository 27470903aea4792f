"""Watches a model's forward while it is captured.

A plan runs what the capture saw. What the forward read beside tensors must stay as it was: it is
described, for the generated package to compare at each call. What the forward does beside making
tensors a plan would not do: it is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from tightfit.stages.runtime.guards.compare import encodings_match
from tightfit.stages.runtime.guards.encode import MISSING, encode_value, tensor_digest
from tightfit.stages.runtime.guards.global_state import ATTENTION_STATES
from tightfit.stages.runtime.guards.paths import cell_contents, cells_by_name
from tightfit.stages.runtime.side_effects import COUNT, SideEffect
from tightfit.stages.trace.capture_errors import (
    attribute_change_message,
    carried_state_message,
    closure_change_message,
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
from tightfit.stages.trace.guards.global_state import GlobalStateMonitor, install_profiler
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
    join_name,
    model_state_paths,
)
from tightfit.stages.trace.guards.side_effects import (
    EffectCandidate,
    EffectDetector,
    EffectProbe,
    change_forms,
)
from tightfit.stages.trace.guards.tensor_queries import TensorQueries
from tightfit.util.errors import ModelError

_RNN_WEIGHT_LISTS = ("_flat_weights", "_flat_weight_refs")
"""Lists of a recurrent layer's weights, which PyTorch makes anew where a weight is replaced."""
_COPY_METHODS = ("__reduce_ex__", "__getstate__")
"""Built-in methods that take all fields of an object."""


@contextlib.contextmanager
def record_guards(model: nn.Module, label: str = "the model") -> Iterator[GuardRecorder]:
    """Watches the runs of the model's forward within it, and afterwards gives the model, its
    containers and all random generators what they held.

    Raises ModelError, as `GuardRecorder.refuse` does, in place of another error where the forward
    did what a plan cannot do, since that is the likely cause."""
    watcher = GuardRecorder(model)
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

    def __init__(self, model: nn.Module) -> None:
        self.model = model
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
        self._recurring = EffectDetector()
        self._probing = False
        self._read_effects: set[tuple[int, Any]] = set()
        self.side_effects: list[EffectCandidate] = []
        """What a plan replays of what the forward changes."""
        self.stored: list[Any] = []
        """What the last run stored of that."""
        self._ran: list[GuardSource] = []

    def names(self) -> set[str]:
        """All names in the user's code that ran."""
        return {name for code in self._reader.codes for name in code.co_names}

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
        self._forget_counters()
        self._check_closures()
        self._ran, lost = locate_executed_code(self._reader)
        record_decorator_settings(self._reader, self._ran)
        self._check_reads()
        changed = dict.fromkeys(
            carried_state_message(said) if self._is_read(key) else said
            for key, said in self.changed.items()
            if not self._taken(key)
        )
        found = (
            self._moved.problems,
            self.asked.problems,
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
        yield

    def settle(self) -> None:
        """Takes what the forward changed for what it makes only once, or for what a plan can do,
        too, where two runs within `leaving` show it to be that."""
        assert self._lasting is not None
        self._settled = self._lasting.settle(self.model, set(self.changed))
        self.side_effects = [
            one
            for one in self._recurring.recurring()
            if one.kind
            and one.path[0] != UNREACHABLE
            and (one.kind == COUNT or not self._is_read(one.key))
        ]

    def probe(self, run: Callable[[], bool]) -> None:
        """Keeps of the side effects those with which one more `run` does not read what stood there;
        it tells whether it was like the ones before it."""
        reader, modules = self._reader, dict(self.model.named_modules(remove_duplicate=False))
        probe = EffectProbe(self.side_effects, modules, lambda: reader.busy or not reader.on)
        self._probing, alike = True, False
        try:
            with probe, contextlib.suppress(Exception):
                alike = run()
        finally:
            self._probing, self._lasting = False, None
            for kept in reader.kept.values():
                restore_snapshot(kept)
        found, self.side_effects = self.side_effects, probe.confirmed() if alike else []
        self._read_effects = {one.key for one in found if one not in self.side_effects}
        for one in self.side_effects:
            if one.of_container:
                self._own[id(one.kept.thing)] = one.kept.shown

    def _check_closures(self) -> None:
        for (kind, _), holder in self._reader.holders.items():
            for name, cell in cells_by_name(holder.thing).items() if kind == "cells" else ():
                before = holder.known.get(name, MISSING)
                if before is not MISSING and not is_unchanged(before, cell_contents(cell)):
                    self.problems.append(closure_change_message(name, holder.thing))
                    cell.cell_contents = before

    def _forget_counters(self) -> None:
        """No guard compares what a plan counts, too."""
        for one in self.side_effects:
            holder = self._reader.holders.get(("fields", id(one.kept.thing)))
            if holder is not None and one.kind == COUNT:
                holder.reads.pop(one.name, None)

    def _taken(self, key: tuple[int, Any]) -> bool:
        """Whether a plan does what the forward changes, or need not do it."""
        if any(one.key == key for one in self.side_effects):
            return True
        recurring = self._recurring.runs[1:] and key in self._recurring.runs[1]
        return self._settled and not recurring

    def _is_read(self, key: tuple[int, Any]) -> bool:
        """Whether the forward reads what it changes before it does."""
        holder = self._reader.holders.get(("fields", key[0]))
        return key in self._read_effects or (holder is not None and key[1] in holder.reads)

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
            "side_effects": [effect.written() for effect in self.described_effects()],
        }

    def described_effects(self) -> list[SideEffect]:
        """The side effects as a package has them."""
        return [one.effect() for one in self.side_effects]

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
            with install_profiler(self._profile):
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
        if self._probing:
            return
        if self._lasting is None:
            self.stored = [one.stored() for one in self.side_effects if one.kind != COUNT]
        changed: dict[tuple[int, Any], StateSnapshot] = {}
        found: dict[tuple[int, Any], EffectCandidate] = {}
        for kept in list(self._reader.kept.values()):
            if is_random_generator(kept.thing):
                if compared_contents(kept) != kept.at_start:
                    self.problems.append(generator_draw_message(kept, self._moved.draws))
                continue
            for name, sentence in self._changes(kept):
                key = id(kept.thing), None if id(kept.thing) in self._reader.hooks else name
                changed[key] = kept
                found[key] = self._candidate(kept, name)
                if self._lasting is None:
                    self.changed.setdefault(key, sentence)
                    undo_change(kept, name)
        if self._lasting is not None:
            self._lasting.ran(changed)
            self._recurring.runs.append(found)

    def _candidate(self, kept: StateSnapshot, name: Any) -> EffectCandidate:
        """A change of the last run with the ways to replay it."""
        of_container = ("fields", id(kept.thing)) not in self._reader.holders
        if name is None:
            label = kept.shown
        elif of_container:
            label = f"{kept.shown}[{name!r}]"
        else:
            label = join_name(kept.shown, str(name))
        forms = change_forms(kept, name, compared_contents(kept))
        return EffectCandidate(kept, name, kept.place, label, of_container, forms)

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
