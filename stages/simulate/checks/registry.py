"""All rules of the referee, in the order in which they look at the end of a schedule."""

from __future__ import annotations

from tightfit.schemas.actions import Action
from tightfit.stages.simulate.checks import compute, gradients_and_frees, transfers, updates
from tightfit.stages.simulate.state import ActionCheck

ACTION_CHECKS: list[ActionCheck] = [
    compute.COMPUTE_CHECK,
    gradients_and_frees.GRADIENT_CHECK,
    compute.RANDOM_STATE_CHECK,
    gradients_and_frees.FREE_CHECK,
    transfers.TRANSFER_CHECK,
    updates.UPDATE_CHECK,
]
"""A new one is a line here."""

CHECK_OF_ACTION: dict[type[Action], ActionCheck] = {
    kind: rule for rule in ACTION_CHECKS for kind in rule.actions
}
