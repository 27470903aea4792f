"""Replays what a forward does beside returning its output: the tensors that it puts into
attributes, dictionaries and lists, and the counters that it moves.

The step gives these tensors as further outputs: its output is a pair of the model's own output and
the list of what is stored.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .guards.encode import MISSING
from .guards.paths import find_source
from .mismatch import PlanMismatch

ASSIGN, APPEND, REPLACE, COUNT = "assign", "append", "replace", "count"
_LIST_KINDS = (APPEND, REPLACE)


@dataclass(frozen=True)
class SideEffect:
    """One thing that a forward does beside returning its output.

    `kind` is "assign" (an attribute, a global or an item of a dictionary), "append" (to a list),
    "replace" (all items of a list) or "count" (a whole number goes up). `path` leads to what holds
    it (`stages.runtime.guards.paths`), `name` is the attribute or key there, and `label` is what a
    sentence calls it. `amount` is the number of items, or what is added to a counter. `unguarded`
    says that what holds it is a list or dictionary of which no guard compares the contents."""

    kind: str
    path: list[list[Any]]
    name: Any
    label: str
    amount: int = 0
    unguarded: bool = False

    def written(self) -> list[Any]:
        """The JSON of this, as `read_side_effects` takes it."""
        return [self.kind, self.path, self.name, self.label, self.amount, self.unguarded]


def read_side_effects(description: Any) -> list[SideEffect]:
    """The side effects in the description of what a trace read; raises ValueError where they are of
    another form."""
    found = (description or {}).get("side_effects", [])
    if not isinstance(found, list) or not all(map(_is_side_effect, found)):
        raise ValueError("the description of what is watched has side effects of an unknown form")
    return [SideEffect(*item) for item in found]


def _is_side_effect(item: Any) -> bool:
    if not isinstance(item, list) or len(item) != 6:
        return False
    kind, path, name, label, amount, unguarded = item
    places = isinstance(path, list) and bool(path) and all(isinstance(s, list) and s for s in path)
    return (
        kind in (ASSIGN, APPEND, REPLACE, COUNT)
        and places
        and isinstance(name, str | int | bool | type(None))
        and isinstance(label, str)
        and type(amount) is int
        and isinstance(unguarded, bool)
    )


class SideEffects:
    """The side effects of a planned forward.

    Example:
        >>> effect = SideEffect("assign", [["module", ""]], "aux", "aux")
        >>> model = torch.nn.Identity()
        >>> SideEffects([effect]).apply(model, ("the output", [torch.ones(1)]))
        'the output'
        >>> model.aux
        tensor([1.])
    """

    def __init__(self, effects: Sequence[SideEffect]) -> None:
        self.effects = effects
        self.stored = [effect for effect in effects if effect.kind != COUNT]

    def __bool__(self) -> bool:
        return bool(self.effects)

    def check(self, model: torch.nn.Module) -> None:
        """Raises PlanMismatch where a model has no place for a side effect."""
        self._holders(model)

    def apply(self, model: torch.nn.Module, pair: tuple[Any, Sequence[Any]]) -> Any:
        """Leaves in a model what the forward leaves there, and gives its output."""
        output, values = pair
        waiting = iter(values)
        for effect, holder in self._holders(model):
            if effect.kind == COUNT:
                holder[effect.name] += effect.amount
            elif effect.kind == ASSIGN:
                holder[effect.name] = next(waiting)
            else:
                if effect.kind == REPLACE:
                    holder.clear()
                holder.extend(next(waiting))
        return output

    def read(self, model: torch.nn.Module) -> list[Any]:
        """What a forward has stored in a model, as the step gives it."""
        found: list[Any] = []
        for effect, holder in self._holders(model):
            if effect.kind == ASSIGN:
                if effect.name not in holder:
                    raise RuntimeError(
                        f"{effect.label} is not set by the forward of a copy of the model, as "
                        "where a function has it from around itself: keep it in an attribute, or "
                        "plan with check=False"
                    )
                found.append(holder[effect.name])
            elif effect.kind in _LIST_KINDS:
                found.append(list(holder)[len(holder) - effect.amount :])
        return found

    def counters(self, model: torch.nn.Module) -> list[int]:
        """The present values of the counters."""
        return [holder[e.name] for e, holder in self._holders(model) if e.kind == COUNT]

    def release(self, model: torch.nn.Module) -> None:
        """Drops the tensors that an earlier forward has stored and the next one stores anew."""
        for effect, holder in self._holders(model):
            if effect.kind == REPLACE:
                holder.clear()
            elif effect.kind == ASSIGN and effect.name in holder:
                holder[effect.name] = None

    @contextlib.contextmanager
    def applied(self, model: torch.nn.Module, values: Sequence[Any]) -> Iterator[None]:
        """Within it a model has what a forward stores, for a loss that reads it there."""
        with self.preserved(model):
            self.apply(model, (None, values))
            yield

    @contextlib.contextmanager
    def preserved(self, model: torch.nn.Module) -> Iterator[None]:
        """Afterwards the places that a forward changes have what they had."""
        holders = self._holders(model)
        before = [_held_contents(effect, holder) for effect, holder in holders]
        try:
            yield
        finally:
            for (effect, holder), known in zip(holders, before, strict=True):
                _restore(effect, holder, known)

    def _holders(self, model: torch.nn.Module) -> list[tuple[SideEffect, Any]]:
        modules: Any = _Submodules(model)
        return [(effect, _find_holder(effect, modules)) for effect in self.effects]


class _Submodules:
    """The modules of a model by path, found as they are asked for."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def get(self, path: str, default: Any) -> Any:
        try:
            return self._model.get_submodule(path)
        except AttributeError:
            return default


NO_SIDE_EFFECTS = SideEffects([])


def loss_with_side_effects(
    loss: Callable[[Any], torch.Tensor], effects: SideEffects, model: torch.nn.Module
) -> Callable[[Any], torch.Tensor]:
    """The loss of the model's output as one of the step's output, a pair: it finds in the model
    what the forward stores there."""
    if not effects:
        return loss

    def evaluate(pair: Sequence[Any]) -> torch.Tensor:
        with effects.applied(model, pair[1]):
            return loss(pair[0])

    return evaluate


def _find_holder(effect: SideEffect, modules: Mapping[str, torch.nn.Module]) -> Any:
    """The list, or the dictionary with the name, that an effect changes."""
    holder = find_source(effect.path, modules)
    if effect.kind in _LIST_KINDS:
        fits = isinstance(holder, list | collections.deque)
    else:
        if not isinstance(holder, dict):
            holder = getattr(holder, "__dict__", MISSING)
        fits = isinstance(holder, dict)
        if fits and effect.kind == COUNT:
            fits = type(holder.get(effect.name)) is int
    if not fits:
        what = "counter" if effect.kind == COUNT else "place"
        raise PlanMismatch(
            f"the {what} {effect.label}, which the forward changes, is no longer what it was when "
            'the plan was made; undo that, plan again, or load with on_mismatch="original"'
        )
    return holder


def _held_contents(effect: SideEffect, holder: Any) -> Any:
    return list(holder) if effect.kind in _LIST_KINDS else holder.get(effect.name, MISSING)


def _restore(effect: SideEffect, holder: Any, known: Any) -> None:
    if effect.kind in _LIST_KINDS:
        holder.clear()
        holder.extend(known)
    elif known is MISSING:
        holder.pop(effect.name, None)
    else:
        holder[effect.name] = known


def unguarded_containers(
    effects: Sequence[SideEffect], modules: Mapping[str, torch.nn.Module]
) -> dict[int, str]:
    """The lists and dictionaries, by id, whose contents a forward only adds to: what they are
    called."""
    found = {}
    for effect in effects:
        holder = find_source(effect.path, modules) if effect.unguarded else MISSING
        if holder is not MISSING:
            found[id(holder)] = effect.label
    return found
