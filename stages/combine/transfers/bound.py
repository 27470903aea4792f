"""What no plan with transfers goes below.

Looks at the moment at which the loss runs. What the backward reads of the forward is there then,
within the budget, or was sent before and comes back afterwards, or is made again afterwards: the
cheapest bytes first, parts of storages allowed. So a plan takes at least as long as all that it
computes, and each side of the loss as long as what the link moves there. A peak is bounded as
without a link (`stages.combine.bounds.least_peak`): an op reads what is on the device.
"""

from __future__ import annotations

from tightfit.schemas.link import HostLink
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.bounds import at_loss
from tightfit.stages.combine.sides import Sides


def least_seconds_linked(problem: Problem, budget: int, link: HostLink) -> float:
    """Seconds that every plan within the budget in bytes takes at least, views left out."""
    moment = at_loss(problem, budget)
    sides = Sides(moment.once, moment.before, moment.after)
    return sides.least(moment.missing, moment.groups, link.bandwidth)
