"""What no plan with transfers goes below.

Looks at the moment at which the loss runs. What the backward reads of the forward is there then,
within the budget, or was sent before and comes back afterwards, or is made again afterwards: the
cheapest bytes first, parts of storages allowed. So a plan takes at least as long as all that it
computes, and each side of the loss as long as what the link moves there. A peak is bounded as
without a link (`stages.combine.bounds.least_peak`): an op reads what is on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from schemas.link import HostLink
from schemas.problem import Problem
from stages.combine.bounds import AtLoss, at_loss

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Line:
    """Seconds as a linear function of the bytes that are sent, on each of some segments."""

    start: Numbers
    slope: Numbers

    def at(self, sent: Numbers) -> Numbers:
        return np.asarray(self.start + self.slope * sent)


def least_seconds_linked(problem: Problem, budget: int, link: HostLink) -> float:
    """Seconds that every plan within the budget in bytes takes at least, views left out."""
    moment = at_loss(problem, budget)
    if moment.missing <= 0:
        return moment.once
    if link.bandwidth == 0:
        return moment.once + moment.remaking(moment.missing)
    sent, remaking = _segments(moment)
    return _least(moment, link, sent, remaking)


def _segments(moment: AtLoss) -> tuple[Numbers, Numbers]:
    """The bytes sent at which another group begins to be made again instead, from none to all that
    is missing, and what making the rest again takes; infinite where that cannot be."""
    made, taken = [0.0], [0.0]
    for size, seconds in moment.groups:
        made.append(made[-1] + size)
        taken.append(taken[-1] + seconds)
    most = min(float(moment.missing), made[-1])
    ends = [size for size in made if size < most] + [most]
    sent = np.array([moment.missing - size for size in ends])[::-1]
    return sent, np.interp(moment.missing - sent, made, taken)


def _least(moment: AtLoss, link: HostLink, sent: Numbers, remaking: Numbers) -> float:
    """The least over what is sent: at the ends of segments, or where two of the limits meet."""
    if len(sent) == 1:
        sent, remaking = np.repeat(sent, 2), np.repeat(remaking, 2)
    low, high = sent[:-1], sent[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(high > low, (remaking[1:] - remaking[:-1]) / (high - low), 0.0)
    makes = _Line(remaking[:-1] - slope * low, slope)
    moved = np.full(len(low), 1.0 / link.bandwidth)
    limits = [
        _Line(moment.once + makes.start, makes.slope),
        _Line(np.full(len(low), moment.before), moved),
        _Line(moment.after + makes.start, makes.slope + moved),
        _Line(np.zeros(len(low)), 2 * moved),
    ]
    points = [low, high]
    for one, other in combinations(limits, 2):
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = (other.start - one.start) / (one.slope - other.slope)
        points.append(np.clip(np.nan_to_num(meet, nan=0.0), low, high))
    return float(min(np.max([line.at(each) for line in limits], axis=0).min() for each in points))
