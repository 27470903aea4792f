"""What a rule of the referee is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tightfit.schemas.actions import Action
from tightfit.stages.replay.state import State
from tightfit.stages.replay.walk import Effect


@dataclass(frozen=True)
class Rule:
    """How actions are played.

    `play` brings the state from before a step to after it and returns the most bytes live within
    it; `finish` looks at the state after the last step. Both raise ScheduleError for what could not
    run.
    """

    actions: tuple[type[Action], ...]
    play: Callable[[State, Effect], int]
    finish: Callable[[State], None]
