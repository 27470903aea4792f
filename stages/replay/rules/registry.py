"""All rules of the referee, in the order in which they look at the end of a schedule."""

from __future__ import annotations

from tightfit.schemas.actions import Action
from tightfit.stages.replay.rules import (
    freeing,
    gradients,
    random_state,
    running,
    transfers,
    updates,
)
from tightfit.stages.replay.rules.rule import Rule

RULES: list[Rule] = [
    running.RULE,
    gradients.RULE,
    random_state.RULE,
    freeing.RULE,
    transfers.RULE,
    updates.RULE,
]
"""A new one is a line here."""

RULE_OF: dict[type[Action], Rule] = {kind: rule for rule in RULES for kind in rule.actions}
