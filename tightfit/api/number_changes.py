"""Numbers that differ between calls and plans; one that changes at each call is found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
    """The values of numbers for which plans were made, and why some have no more plans.

    Example:
        >>> changes = NumberChanges()
        >>> changes.next_change([Refusal("w is 2, the plan was made for 1", ("w", 2, 1))])
        ''
        >>> changes.next_change([Refusal("w is 3, the plan was made for 1", ("w", 3, 1))])
        'w'
    """

    values: dict[str, set[float]] = field(default_factory=dict)
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
