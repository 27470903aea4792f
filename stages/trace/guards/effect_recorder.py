"""Records what a forward changes each time that it runs, and settles what of it a plan can do."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from tightfit.stages.runtime.guards.encode import MISSING, instance_fields
from tightfit.stages.runtime.guards.paths import cell_contents, cells_by_name
from tightfit.stages.runtime.side_effects import COUNT, SideEffect
from tightfit.stages.trace.effect_errors import carried_state_message, closure_change_message
from tightfit.stages.trace.guards.attribute_recorder import AttributeRecorder
from tightfit.stages.trace.guards.guard_source import (
    UNREACHABLE,
    StateSnapshot,
    compared_contents,
    is_unchanged,
)
from tightfit.stages.trace.guards.reachable_state import join_name
from tightfit.stages.trace.guards.side_effects import (
    EffectCandidate,
    EffectDetector,
    EffectKey,
    EffectProbe,
    change_forms,
    find_places,
)

_MAX_DEPTH = 6


class EffectRecorder:
    """What a forward changes in each run. `effects` are the changes that a plan replays, `stored`
    what the last run stored of them; `own` gets the ids of what no guard compares for them."""

    def __init__(self, reader: AttributeRecorder, own: dict[int, str]) -> None:
        self._reader = reader
        self._own = own
        self._detector = EffectDetector()
        self._read: set[EffectKey] = set()
        self.probing = False
        self.effects: list[EffectCandidate] = []
        self.stored: list[Any] = []
        self._last_changed: list[str] = []

    def described(self) -> list[SideEffect]:
        """The side effects as a package has them."""
        return [one.effect() for one in self.effects]

    def collect(self) -> None:
        """Takes what a run has stored, before that is undone."""
        self.stored = [one.stored() for one in self.effects if one.kind != COUNT]
        self._last_changed = [one.label for one in self.effects if one.is_changed()]

    def take_stored(self) -> list[Any]:
        """What the run of a forward has stored that has just ended."""
        self._last_changed = []
        return self.stored

    def changed_in_backward(self) -> str:
        """What the backward behind the last forward has changed once more, "" if nothing."""
        return next(iter(self._last_changed), "")

    def ran(self, changed: dict[EffectKey, tuple[StateSnapshot, Any]]) -> None:
        """Takes the changes of a run that leaves them to the next one."""
        self._detector.runs.append(
            {key: self._candidate(kept, name) for key, (kept, name) in changed.items()}
        )

    def _candidate(self, kept: StateSnapshot, name: Any) -> EffectCandidate:
        of_container = ("fields", id(kept.thing)) not in self._reader.holders
        if name is None:
            label = kept.shown
        elif of_container:
            label = f"{kept.shown}[{name!r}]"
        else:
            label = join_name(kept.shown, str(name))
        now = compared_contents(kept)
        forms = change_forms(kept, name, now)
        if self._holds_known(now.get(name) if name is not None else list(now)):
            forms = set()
        return EffectCandidate(kept, name, kept.place, label, of_container, forms)

    def _holds_known(self, value: Any, depth: int = 0) -> bool:
        """Whether a value is or has a list, dictionary or object that was there before: what is
        stored of it would be a copy."""
        if isinstance(value, torch.Tensor | nn.Module) or depth > _MAX_DEPTH:
            return isinstance(value, nn.Module)
        fields = instance_fields(value)
        if id(value) in self._reader.kept or ("fields", id(fields)) in self._reader.holders:
            return True
        items = [*fields.values()]
        items += value.values() if isinstance(value, dict) else ()
        items += value if isinstance(value, list | tuple | collections.deque) else ()
        return any(self._holds_known(item, depth + 1) for item in items)

    def settle(self) -> None:
        """Takes the changes of both of two runs that could be replayed."""
        self.effects = [
            one
            for one in self._detector.recurring(self._own)
            if one.kind
            and one.path[0] != UNREACHABLE
            and (one.kind == COUNT or not self.is_read(one.key))
        ]

    def probe(self, run: Callable[[], bool]) -> None:
        """Keeps of these changes those with which one more `run` does not read what stood there; it
        tells whether it was like the ones before it."""
        reader = self._reader
        places = find_places(reader.holders.values(), reader.kept.values())
        probe = EffectProbe(self.effects, places, lambda: reader.busy or not reader.on)
        self.probing, alike = True, False
        try:
            with probe, contextlib.suppress(Exception):
                alike = run()
        finally:
            self.probing = False
        found, self.effects = self.effects, probe.confirmed() if alike else []
        self._read = {one.key for one in found if one not in self.effects}
        for one in self.effects:
            if one.of_container:
                self._own[id(one.kept.thing)] = one.kept.shown

    def forget_counters(self) -> None:
        """No guard compares what a plan counts, too."""
        for one in self.effects:
            holder = self._reader.holders.get(("fields", id(one.kept.thing)))
            if holder is not None and one.kind == COUNT:
                holder.reads.pop(one.name, None)

    def unsupported(self, changed: dict[EffectKey, str], settled: bool) -> Iterator[str]:
        """Sentences on what the forward `changed` and a plan does not; with `settled` it need not
        do what only the first of two runs did."""
        taken = {one.key for one in self.effects}
        again = self._detector.runs[1] if len(self._detector.runs) > 1 else {}
        for key, sentence in changed.items():
            if key not in taken and not (settled and key not in again):
                read = self.is_read(key)
                yield carried_state_message(sentence, key[1] is None) if read else sentence

    def is_read(self, key: EffectKey) -> bool:
        """Whether the forward reads what it changes before it does."""
        holder = self._reader.holders.get(("fields", key[0]))
        return key in self._read or (holder is not None and key[1] in holder.reads)

    def closure_problems(self) -> Iterator[str]:
        """Sentences on variables around functions that the forward has set; puts them back."""
        for (kind, _), holder in self._reader.holders.items():
            for name, cell in cells_by_name(holder.thing).items() if kind == "cells" else ():
                before = holder.known.get(name, MISSING)
                if before is not MISSING and not is_unchanged(before, cell_contents(cell)):
                    cell.cell_contents = before
                    yield closure_change_message(name, holder.thing)
