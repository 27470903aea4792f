"""Axes: where a number lies on a plot, in percent of its width or height, and the round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AxisTick:
    """A mark on an axis: `at` percent from its start. A `minor` tick is left out where it is
    narrow."""

    at: float
    label: str
    minor: bool


@dataclass(frozen=True)
class AxisScale:
    """A straight axis from `low` to `high`; `flipped` counts from the far end, as heights do."""

    low: float
    high: float
    flipped: bool = False

    def at(self, value: float) -> float:
        """Percent from the start of the axis, 0 to 100 for values inside."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return round(100 * (1 - share if self.flipped else share), 3)

    def ticks(self, number: int, say: Callable[[float], str]) -> list[AxisTick]:
        """About `number` round ticks, each labeled by `say`; fewer where labels would repeat."""
        step = round_step((self.high - self.low) / max(number, 1))
        ticks = self._ticks_at(step, say)
        while len({tick.label for tick in ticks}) < len(ticks):
            step = round_step(1.5 * step)
            ticks = self._ticks_at(step, say)
        return ticks

    def _ticks_at(self, step: float, say: Callable[[float], str]) -> list[AxisTick]:
        """The ticks at all multiples of a step."""
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [
            AxisTick(self.at(index * step), say(index * step), index % 2 != 0)
            for index in range(first, last + 1)
        ]


def round_step(step: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below `step`."""
    if step <= 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def fit_scale(values: Iterable[float], margin: float, flipped: bool = False) -> AxisScale:
    """A scale around all values with a share `margin` of their span left at both ends."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = margin * ((high - low) or abs(high) or 1.0)
    return AxisScale(low - room, high + room, flipped)


def staircase_path(points: Sequence[tuple[float, float]]) -> str:
    """The path data of a staircase: level at each point's height until the next point's place."""
    if not points:
        return ""
    parts = [f"M{10 * points[0][0]:.1f} {10 * points[0][1]:.1f}"]
    parts += [f"H{10 * x:.1f}V{10 * y:.1f}" for x, y in points[1:]]
    return "".join(parts)


def assign_label_rows(places: Sequence[float], room: float, most: int) -> list[int]:
    """Rows for labels at `places` (percent, rising), so that those on one row keep `room` percent
    apart; -1 for a label that finds no row among `most`."""
    free_from = [-math.inf] * most
    rows = []
    for place in places:
        row = next((row for row in range(most) if place >= free_from[row]), -1)
        if row >= 0:
            free_from[row] = place + room
        rows.append(row)
    return rows
