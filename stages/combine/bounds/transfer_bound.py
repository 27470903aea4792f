"""What the computations on both sides of a moment take at least, beside a link that moves what has
no room there: it is sent before the moment and comes back behind it, or is made again behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.array_types import FloatArray
from tightfit.stages.combine.bounds.lower_bounds import cut_at_loss


@dataclass(frozen=True)
class CutSeconds:
    """Seconds of computations around a moment: of all of them `once`, of those that run up to its
    end (`before`), from its begin on (`after`), and at it (`during`)."""

    once: float
    before: float
    after: float
    during: float = 0.0

    def least(self, missing: float, groups: Sequence[tuple[int, float]], bandwidth: float) -> float:
        """The least seconds over how many of the `missing` bytes are sent, in a link of bytes a
        second. The others are made again: `groups` are bytes with the seconds that this takes, the
        cheapest bytes first, parts allowed. Infinite where neither can be."""
        if missing <= 0:
            return self.once
        sent, remaking = _recompute_segments(missing, groups)
        if bandwidth == 0:
            return self.once + float(remaking[0]) if sent[0] <= 0 else math.inf
        return self._least(sent, remaking, bandwidth)

    def _least(self, sent: FloatArray, remaking: FloatArray, bandwidth: float) -> float:
        """The least at the ends of segments, or where two of the limits meet."""
        if len(sent) == 1:
            sent, remaking = np.repeat(sent, 2), np.repeat(remaking, 2)
        low, high = sent[:-1], sent[1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(high > low, (remaking[1:] - remaking[:-1]) / (high - low), 0.0)
        makes = _LinearTime(remaking[:-1] - slope * low, slope)
        moved = np.full(len(low), 1.0 / bandwidth)
        limits = [
            _LinearTime(self.once + makes.start, makes.slope),
            _LinearTime(np.full(len(low), self.before), moved),
            _LinearTime(self.after + makes.start, makes.slope + moved),
            _LinearTime(np.full(len(low), self.during), 2 * moved),
        ]
        points = [low, high]
        for one, other in combinations(limits, 2):
            with np.errstate(divide="ignore", invalid="ignore"):
                meet = (other.start - one.start) / (one.slope - other.slope)
            points.append(np.clip(np.nan_to_num(meet, nan=0.0), low, high))
        found = (np.max([line.at(each) for line in limits], axis=0).min() for each in points)
        return float(min(found))


@dataclass(frozen=True)
class _LinearTime:
    """Seconds as a linear function of the bytes that are sent, on each of some segments."""

    start: FloatArray
    slope: FloatArray

    def at(self, sent: FloatArray) -> FloatArray:
        return np.asarray(self.start + self.slope * sent)


def _recompute_segments(
    missing: float, groups: Sequence[tuple[int, float]]
) -> tuple[FloatArray, FloatArray]:
    """The bytes sent at which another group begins to be made again instead, from none to all that
    is missing, and what making the rest again takes; as many are sent as cannot be made again."""
    made, taken = [0.0], [0.0]
    for size, seconds in groups:
        made.append(made[-1] + size)
        taken.append(taken[-1] + seconds)
    most = min(float(missing), made[-1])
    ends = [size for size in made if size < most] + [most]
    sent = np.array([missing - size for size in ends])[::-1]
    return sent, np.interp(missing - sent, made, taken)


def time_lower_bound_with_transfers(problem: PlanningGraph, budget: int, link: HostLink) -> float:
    """Seconds that every plan within the budget in bytes takes at least, views left out."""
    moment = cut_at_loss(problem, budget)
    sides = CutSeconds(moment.once, moment.before, moment.after)
    return sides.least(moment.missing, moment.groups, link.bandwidth)
