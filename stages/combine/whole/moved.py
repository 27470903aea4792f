"""What is placed in a schedule, and why it may not be."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.schemas.updates import Updates


@dataclass(frozen=True)
class Window:
    """Steps from `first` to `last` for which a parameter (a storage) is on the device; -1 for one
    that is there when the step begins, the number of steps for one that stays."""

    storage: int
    first: int
    last: int


@dataclass(frozen=True)
class Moved:
    """Which parameters are where: `updates` as the referee takes them, the `here` that are updated
    on the device, and the windows in which those of the other memory are on the device, by first
    step. `room` are the bytes of the device for all of it."""

    updates: Updates
    here: frozenset[int]
    windows: list[Window]
    room: int
    slack: float
    margin: int


class TooLittleError(Exception):
    """There is no room at some step; `step` is its position and `needed` the bytes of the device,
    or of the other memory where that is `away`."""

    def __init__(self, step: int, needed: int, away: bool = False) -> None:
        super().__init__(step, needed, away)
        self.step = step
        self.needed = needed
        self.away = away


class TooSlowError(Exception):
    """A plan takes longer than what was asked for."""
