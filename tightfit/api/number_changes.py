"""Numbers that differ between calls and plans; one that changes at each call is found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightfit.mismatch import PlanMismatch


@dataclass(frozen=True)
class Refusal:
    """Why a plan does not take a call, without the frames of the error, which keep tensors. Where a
    number differs, it has what that is called, its value and that of the plan."""

    text: str
    number: tuple[str, float, float] | None = None

    @classmethod
    def of(cls, error: PlanMismatch) -> Refusal:
        """What is kept of an error."""
        return cls(str(error), getattr(error, "number", None))

    @property
    def clause(self) -> str:
        """How the call differs."""
        return self.text.partition(";")[0]


@dataclass
class NumberChanges:
    """The values of numbers for which plans were made, those that are inputs of plans, and why
    others have no more plans.

    Example:
        >>> changes = NumberChanges()
        >>> changes.next_change([Refusal("w is 2, the plan was made for 1", ("w", 2, 1))])
        ''
        >>> changes.next_change([Refusal("w is 3, the plan was made for 1", ("w", 3, 1))])
        'w'
    """

    values: dict[str, set[float]] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    unplanned: dict[str, str] = field(default_factory=dict)

    def next_change(self, refusals: Iterable[Refusal]) -> str:
        """The name of a number that has a third value, so that it is likely to have more; "" where
        none has. Values of the others are those of plans from now on."""
        different = [refusal.number for refusal in refusals if refusal.number is not None]
        for name, found, _ in different:
            known = self.values.get(name, set())
            if found not in known and len(known) > 1:
                return name
        for name, found, expected in different:
            self.values.setdefault(name, set()).update((found, expected))
        return ""

    def add_input(self, name: str) -> None:
        """A number is an input of plans from now on; "" is none."""
        self.inputs += (name,) if name and name not in self.inputs else ()


def replace_floats(
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    convert: Mapping[str, Callable[[float], Any]],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with what `convert` makes of floats, by their names; raises
    PlanMismatch where one of them is no float."""
    bound = signature.bind(*args, **kwargs)
    for name, make in convert.items():
        value = bound.arguments.get(name, signature.parameters[name].default)
        if type(value) is not float:
            raise PlanMismatch(f"{name} is no float, the plan was made for one")
        bound.arguments[name] = make(value)
    return bound.args, bound.kwargs
