"""Lays a measured memory line over a predicted one.

Measuring memory slows a step down, and not evenly. Where both lines pass through the same bytes in
the same order they are at the same place of the program, so that the measured clock can be set by
the predicted one there. The bytes are never touched: where they differ, the picture shows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from difflib import SequenceMatcher

Level = tuple[float, int]
"""From this second on, so many bytes are live."""

LEAST_SHARE = 0.3
"""The least share of measured levels that must be found again; below, the line is stretched."""

RUN = 3
"""Levels in a row that must agree to set the clock: single ones agree by chance."""


def aligned(measured: Sequence[Level], predicted: Sequence[Level], seconds: float) -> list[Level]:
    """The measured line on the predicted clock, which ends at `seconds`; times never fall.

    Between places that agree, time runs evenly. A line that agrees in too few places is stretched
    to the same length.
    """
    line = _changes(measured)
    if not line or line[-1][0] <= 0:
        return []
    anchors = _anchors(line, _changes(predicted)) or [(0.0, 0.0)]
    anchors = [(0.0, 0.0), *anchors, (line[-1][0], max(seconds, anchors[-1][1]))]
    starts = [when for when, _ in anchors]
    return [(_moved(when, anchors, starts), level) for when, level in line]


def _changes(line: Sequence[Level]) -> list[Level]:
    """The points at which the level changes, and the last one."""
    kept = [
        point for index, point in enumerate(line) if index == 0 or point[1] != line[index - 1][1]
    ]
    return kept if not line or kept[-1] == line[-1] else [*kept, line[-1]]


def _anchors(measured: list[Level], predicted: list[Level]) -> list[tuple[float, float]]:
    """Pairs of a measured and a predicted second at which the same bytes become live."""
    matcher = SequenceMatcher(
        None, [level for _, level in predicted], [level for _, level in measured], autojunk=False
    )
    pairs = [
        (measured[block.b + step][0], predicted[block.a + step][0])
        for block in matcher.get_matching_blocks()
        if block.size >= RUN
        for step in range(block.size)
    ]
    return pairs if len(pairs) >= LEAST_SHARE * min(len(measured), len(predicted)) else []


def _moved(when: float, anchors: list[tuple[float, float]], starts: list[float]) -> float:
    after = min(max(bisect_right(starts, when), 1), len(anchors) - 1)
    (low, to_low), (high, to_high) = anchors[after - 1], anchors[after]
    share = (when - low) / (high - low) if high > low else 1.0
    return to_low + min(share, 1.0) * (to_high - to_low)
