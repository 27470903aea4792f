"""Plans with transfers as points of a frontier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tightfit.schemas.actions import Action
from tightfit.schemas.frontier import Point
from tightfit.schemas.plan import PlanCost

FOUND = ", with transfers"


def next_to(points: Iterable[Point], budget: int) -> list[Point]:
    """The points with transfers, of points by falling peak, that are next to a budget in bytes:
    above it and within it, at most one each."""
    linked = [point for point in points if point.transfers]
    above = [point for point in linked if point.peak > budget][-1:]
    return above + [point for point in linked if point.peak <= budget][:1]


def linked_point(source: Point, actions: Sequence[Action], ceiling: int, cost: PlanCost) -> Point:
    """The point of a plan with transfers, found from one without, with what replay says of it."""
    return replace(
        source,
        peak=cost.peak,
        seconds=cost.time,
        polished=True,
        in_place=True,
        ceiling=ceiling,
        actions=list(actions),
        origin=source.origin.removesuffix(FOUND) + FOUND,
    )
